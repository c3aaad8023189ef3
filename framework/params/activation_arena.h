#ifndef FRAMEWORK_PARAMS_ACTIVATION_ARENA_H_
#define FRAMEWORK_PARAMS_ACTIVATION_ARENA_H_

#include <cstdint>
#include <optional>

#include "ATen/core/Tensor.h"
#include "framework/params/parameter_store.h"

namespace tessera {

// Which bytes of the flat gradient buffer the forward pass may still take.
//
// Backward visits the ops in reverse and each parameter's gradient lies where
// execution order puts it. So a tensor made while op k runs is dead before any
// gradient up to and including op k's own is written, as long as op k itself
// does not save it; it is alive while later ones are. It may therefore take
// whatever ends no later than the gradient of op k's parameter.
class ArenaCursor {
 public:
  // `begin`: bytes at the front that are not to be taken.
  explicit ArenaCursor(int64_t begin) : next_(begin) {}

  // An op runs whose parameter's gradient ends `end` bytes into the buffer.
  void Reach(int64_t end);
  // The offset of `bytes` bytes, aligned to 256; none where they do not fit.
  std::optional<int64_t> Take(int64_t bytes);

 private:
  int64_t next_;
  int64_t limit_ = 0;
};

// Keeps the activations of one forward pass inside the flat gradient buffer,
// which is free until backward when a step is one micro-batch. Eager PyTorch
// frees gradients between steps; this gives the same peak memory without
// giving up the flat buffer.
//
// The gradients are garbage from the first tensor on, until backward and
// ParameterStore::ZeroUnwrittenGradients() have run. The store outlives every
// tensor that lies in it.
class ActivationArena {
 public:
  // `read_twice`: a parameter that the forward pass reads again at its end (a
  // tied embedding, the store's first), so that backward writes its gradient
  // early; null if there is none.
  ActivationArena(const ParameterStore& parameters,
                  const Parameter* read_twice);

  void Reach(const Parameter& parameter);
  std::optional<at::Tensor> Take(at::IntArrayRef sizes,
                                 const at::TensorOptions& options);

 private:
  const at::Tensor buffer_;
  ArenaCursor cursor_;
};

// While it lives, the ops that this thread runs take their results from
// `arena`; null: from LibTorch's allocator. Scopes nest.
class ActivationArenaScope {
 public:
  explicit ActivationArenaScope(ActivationArena* arena);
  ~ActivationArenaScope();
  ActivationArenaScope(const ActivationArenaScope&) = delete;
  ActivationArenaScope& operator=(const ActivationArenaScope&) = delete;

 private:
  ActivationArena* const outer_;
};

// For the forward of ops: first, if the op reads a parameter.
void ReachParameter(const Parameter& parameter);

// An uninitialised result that later ops may save, but not the op that makes
// it: in this thread's arena where there is room, else from the allocator.
at::Tensor EmptyActivation(at::IntArrayRef sizes,
                           const at::TensorOptions& options);

}  // namespace tessera

#endif  // FRAMEWORK_PARAMS_ACTIVATION_ARENA_H_
