#include "framework/ops/linear_cross_entropy/linear_cross_entropy.h"

#include <algorithm>
#include <vector>

#include "ATen/ATen.h"
#include "framework/ops/cross_entropy/cross_entropy_kernels.h"
#include "framework/ops/linear/matrix_product.h"
#include "framework/ops/rows.h"

namespace tessera {
namespace {

constexpr int kX = 0, kWeight = 1, kTargets = 2;  // operands

class LinearCrossEntropyOp : public OpWithKernels<CrossEntropyKernels> {
 public:
  LinearCrossEntropyOp(const LinearProducts& products, at::ScalarType logits,
                       KernelKind kernels, const CrossEntropyOptions& options,
                       const LogitChunks& chunks)
      : OpWithKernels(kernels),
        products_(products),
        logits_(logits),
        options_(options),
        chunks_(chunks) {}

  absl::string_view kind() const override { return "linear_cross_entropy"; }

  void Forward(const ForwardArgs& args) const override {
    Chunks(args.operands, args.results[0], [](const Chunk&) {});
  }

  bool joins_backward() const override { return true; }
  void ForwardBackward(const BackwardArgs& args) const override {
    const GradTarget& dw = args.d_operands[kWeight];
    const at::Tensor& dx = args.d_operands[kX].grad;
    bool accumulate = dw.accumulate;
    Chunks(args.operands, args.results[0], [&](const Chunk& c) {
      kernels().backward(c.rows, args.d_results[0], c.lse, c.rows.logits);
      const at::Tensor dlogits = InProductDtype(c.rows.logits);
      // dx may overwrite x: the weight's gradient is the last to read it.
      if (dw.grad.defined()) {
        Multiply(dlogits.t(), c.x,
                 {.accumulate = accumulate, .choices = products_.choices.get()},
                 dw.grad);
        accumulate = true;
      }
      if (dx.defined()) {
        Multiply(dlogits, c.weight, {.choices = products_.choices.get()},
                 RowsOf(dx, width()).narrow(0, c.begin, c.x.size(0)));
      }
    });
  }
  void Backward(const BackwardArgs& args) const override {
    ForwardBackward(args);
  }

  BackwardReads ReadsInBackward(Positions) const override {
    return {.operands = {kX, kWeight, kTargets}};
  }
  std::vector<Overwritable> GradientMayOverwrite(int) const override {
    return {{Overwritable::What::kOperand, kX}};
  }

  int64_t ForwardWorkspaceBytes() const override {
    const int64_t rows = rows_of_chunk();
    const int64_t lse = LseType(rows).bytes() + NumChunks() * result(0).bytes();
    return rows * row_bytes() + lse +
           /*one loss per row*/ LseType(rows).bytes() +
           CastBytes(operand(kWeight).numel(), operand(kWeight).dtype) +
           CastBytes(rows * width(), operand(kX).dtype);
  }
  int64_t BackwardWorkspaceBytes(Positions) const override {
    return ForwardWorkspaceBytes() +
           CastBytes(rows_of_chunk() * vocab(), logits_);
  }

  std::vector<MatrixProduct> Products() const override {
    const at::Tensor w = WithoutMemory({{vocab(), width()}, products_.dtype});
    const at::Tensor dw =
        WithoutMemory({{vocab(), width()}, products_.gradient});
    std::vector<MatrixProduct> products;
    // The last chunk may be smaller.
    for (const int64_t rows :
         {rows_of_chunk(),
          this->rows() - (NumChunks() - 1) * rows_of_chunk()}) {
      const at::Tensor x = WithoutMemory({{rows, width()}, products_.dtype});
      const at::Tensor logits = Logits(rows, at::kMeta);
      const at::Tensor dlogits = InProductDtype(logits);
      AddProducts({x, w.t(), logits}, &products);
      AddProducts({dlogits.t(), x, dw}, &products);
      AddProducts(
          {dlogits, w, WithoutMemory({{rows, width()}, operand(kX).dtype})},
          &products);
    }
    return products;
  }

  Cost ForwardCost() const override {
    return {.flops = ProductFlops() + 4 * NumLogits(),
            .bytes = ForwardBytes(),
            .product_flops = ProductFlops()};
  }
  Cost BackwardCost(Positions wanted) const override {
    const double products = ProductFlops() * (1 + (wanted.Has(kX) ? 1 : 0) +
                                              (wanted.Has(kWeight) ? 1 : 0));
    return {.flops = products + 7 * NumLogits(),
            .bytes = BackwardBytes(wanted) + result(0).bytes(),
            .product_flops = products};
  }

 private:
  struct Chunk {
    int64_t begin = 0;     // row
    at::Tensor x, weight;  // [rows, C], [V, C]; of the products' dtype
    CrossEntropyRows rows;
    at::Tensor lse;
  };

  // Computes the loss. Calls fn(chunk) after each chunk's forward.
  template <typename Fn>
  void Chunks(absl::Span<const at::Tensor> operands, at::Tensor loss,
              const Fn& fn) const {
    const at::Tensor x = RowsOf(operands[kX], width());
    const at::Tensor targets = operands[kTargets].view({-1});
    const at::Tensor weight = InProductDtype(operands[kWeight]);
    const int64_t rows_of_chunk = this->rows_of_chunk();
    const at::Tensor logits = Logits(rows_of_chunk, x.device());
    const at::Tensor losses = at::empty({NumChunks()}, loss.options());
    for (int64_t i = 0; i < NumChunks(); ++i) {
      Chunk c = {.begin = i * rows_of_chunk, .weight = weight};
      const int64_t rows = std::min(rows_of_chunk, x.size(0) - c.begin);
      c.x = InProductDtype(x.narrow(0, c.begin, rows));
      c.rows = {.logits = logits.narrow(0, 0, rows),
                .targets = targets.narrow(0, c.begin, rows),
                .options = options_};
      c.lse = at::empty(LseType(rows).shape, loss.options());
      Multiply(c.x, weight.t(), {.choices = products_.choices.get()},
               c.rows.logits);
      kernels().forward(c.rows, NumChunks() == 1 ? loss : losses[i], c.lse);
      fn(c);
    }
    if (NumChunks() > 1) at::sum_out(loss, losses, /*dim=*/{0});
  }

  // Room for the logits of a chunk.
  at::Tensor Logits(int64_t rows, at::Device device) const {
    return at::empty({rows, row_bytes() / SizeOf(logits_)},
                     at::dtype(logits_).device(device))
        .narrow(1, 0, vocab());
  }
  // The CUDA kernel keeps each row's log-sum-exp in two parts.
  TensorType LseType(int64_t rows) const {
    return kernel_kind() == KernelKind::kCuda
               ? TensorType{{2, rows}, result(0).dtype}
               : TensorType{{rows}, result(0).dtype};
  }
  at::Tensor InProductDtype(const at::Tensor& t) const {
    return t.scalar_type() == products_.dtype ? t : t.to(products_.dtype);
  }
  int64_t CastBytes(int64_t numel, at::ScalarType from) const {
    return from == products_.dtype ? 0 : numel * SizeOf(products_.dtype);
  }
  static int64_t SizeOf(at::ScalarType dtype) {
    return static_cast<int64_t>(c10::elementSize(dtype));
  }

  int64_t vocab() const { return operand(kWeight).shape[0]; }
  int64_t width() const { return operand(kWeight).shape[1]; }
  int64_t rows() const { return operand(kTargets).numel(); }
  int64_t rows_of_chunk() const {
    return chunks_.RowsOfChunk(rows(), row_bytes());
  }
  // From one row of logits to the next. On a GPU rows begin at multiples of 16
  // bytes, which fast products need (matrix_product.cc).
  int64_t row_bytes() const {
    const int64_t bytes = vocab() * SizeOf(logits_);
    return kernel_kind() == KernelKind::kCuda ? (bytes + 15) / 16 * 16 : bytes;
  }
  int64_t NumChunks() const {
    return (rows() + rows_of_chunk() - 1) / rows_of_chunk();
  }
  double NumLogits() const {
    return static_cast<double>(rows()) * static_cast<double>(vocab());
  }
  double ProductFlops() const {
    return 2 * NumLogits() * static_cast<double>(width());
  }

  const LinearProducts products_;
  const at::ScalarType logits_;
  const CrossEntropyOptions options_;
  const LogitChunks chunks_;
};

}  // namespace

int64_t LogitChunks::RowsOfChunk(int64_t rows, int64_t row_bytes) const {
  // Multiples of 128 rows, which products compute at a time.
  const int64_t fitting = std::max(bytes / row_bytes, min_rows) / 128 * 128;
  const int64_t least = (rows + max_chunks - 1) / max_chunks;
  return std::min(rows, std::max(fitting, (least + 127) / 128 * 128));
}

std::unique_ptr<Op> LinearCrossEntropy(const LinearProducts& products,
                                       at::ScalarType logits,
                                       KernelKind kernels,
                                       const CrossEntropyOptions& options,
                                       const LogitChunks& chunks) {
  return std::make_unique<LinearCrossEntropyOp>(products, logits, kernels,
                                                options, chunks);
}

}  // namespace tessera
