#include "framework/params/activation_arena.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

constexpr int64_t kAlignment = 256;  // of the allocator's blocks, in bytes

thread_local ActivationArena* current_arena = nullptr;

// Where the gradient ends, in bytes from the start of the flat buffer.
int64_t GradientEnd(const Parameter& parameter) {
  const at::Tensor& grad = parameter.grad();
  return (grad.storage_offset() + grad.numel()) * grad.element_size();
}

}  // namespace

void ArenaCursor::Reach(int64_t end) { limit_ = std::max(limit_, end); }

std::optional<int64_t> ArenaCursor::Take(int64_t bytes) {
  const int64_t begin = (next_ + kAlignment - 1) / kAlignment * kAlignment;
  if (begin + bytes > limit_) return std::nullopt;
  next_ = begin + bytes;
  return begin;
}

ActivationArena::ActivationArena(const ParameterStore& parameters,
                                 const Parameter* read_twice)
    : buffer_(parameters.grad()),
      cursor_(read_twice != nullptr && read_twice->trainable()
                  ? GradientEnd(*read_twice)
                  : 0) {}

void ActivationArena::Reach(const Parameter& parameter) {
  if (parameter.trainable()) cursor_.Reach(GradientEnd(parameter));
}

std::optional<at::Tensor> ActivationArena::Take(
    at::IntArrayRef sizes, const at::TensorOptions& options) {
  const int64_t bytes = c10::multiply_integers(sizes) *
                        static_cast<int64_t>(options.dtype().itemsize());
  if (options.device() != buffer_.device()) return std::nullopt;
  const std::optional<int64_t> offset = cursor_.Take(bytes);
  if (!offset.has_value()) return std::nullopt;
  // A tensor of its own, not a view of the buffer: a view would share the
  // version counter by which autograd checks that saved tensors are unchanged.
  char* const base = static_cast<char*>(buffer_.mutable_data_ptr());
  return at::for_blob(base + *offset, sizes)
      .options(options)
      .target_device(buffer_.device())
      .make_tensor();
}

ActivationArenaScope::ActivationArenaScope(ActivationArena* arena)
    : outer_(std::exchange(current_arena, arena)) {}

ActivationArenaScope::~ActivationArenaScope() { current_arena = outer_; }

void ReachParameter(const Parameter& parameter) {
  if (current_arena != nullptr) current_arena->Reach(parameter);
}

at::Tensor EmptyActivation(at::IntArrayRef sizes,
                           const at::TensorOptions& options) {
  if (current_arena != nullptr) {
    if (auto tensor = current_arena->Take(sizes, options)) return *tensor;
  }
  return at::empty(sizes, options);
}

}  // namespace tessera
