#include "framework/ops/linear/linear.h"

#include <algorithm>
#include <memory>

#include "ATen/ATen.h"
#include "framework/base/check.h"
#include "framework/ops/linear/few_rows.h"
#include "framework/ops/linear/matrix_product.h"
#include "framework/ops/rms_norm/rms_norm.h"
#include "framework/ops/rows.h"

namespace tessera {
namespace {

constexpr int kX = 0, kWeight = 1;

class LinearOp : public Op {
 public:
  LinearOp(const LinearProducts& products, const char* library)
      : products_(products), library_(library) {}

  const LinearProducts& products() const { return products_; }

  absl::string_view kind() const override { return "linear"; }
  std::string kernel() const override { return library_; }

  void Forward(const ForwardArgs& args) const override {
    Multiply(RowsOf(Cast(args.operands[kX]), in()),
             Cast(args.operands[kWeight]).t(),
             {.choices = products_.choices.get(),
              .spared_multiprocessors = args.spared_multiprocessors},
             RowsOf(args.results[0], out()));
  }

  void Backward(const BackwardArgs& args) const override {
    const at::Tensor dy = Cast(RowsOf(args.d_results[0], out()));
    // Computes the weight's gradient first, because it is the last to read x.
    if (const GradTarget& dw = args.d_operands[kWeight]; dw.grad.defined()) {
      Multiply(
          dy.t(), RowsOf(Cast(args.operands[kX]), in()),
          {.accumulate = dw.accumulate, .choices = products_.choices.get()},
          dw.grad);
    }
    if (const at::Tensor& dx = args.d_operands[kX].grad; dx.defined()) {
      Multiply(dy, Cast(args.operands[kWeight]),
               {.choices = products_.choices.get()}, RowsOf(dx, in()));
    }
  }

  BackwardReads ReadsInBackward(Positions wanted) const override {
    BackwardReads reads;
    if (wanted.Has(kX)) reads.operands.Add(kWeight);
    if (wanted.Has(kWeight)) reads.operands.Add(kX);
    return reads;
  }
  bool separable() const override { return true; }
  std::vector<Overwritable> GradientMayOverwrite(int position) const override {
    return {{Overwritable::What::kOperand, kX}};
  }

  int64_t ForwardWorkspaceBytes() const override {
    return CastBytes(operand(kX)) + CastBytes(operand(kWeight));
  }
  int64_t BackwardWorkspaceBytes(Positions wanted) const override {
    return CastBytes(result(0)) +
           std::max(wanted.Has(kWeight) ? CastBytes(operand(kX)) : 0,
                    wanted.Has(kX) ? CastBytes(operand(kWeight)) : 0);
  }

  std::vector<MatrixProduct> Products() const override {
    const int64_t rows = operand(kX).numel() / in();
    const at::Tensor x = WithoutMemory({{rows, in()}, products_.dtype});
    const at::Tensor w = WithoutMemory({{out(), in()}, products_.dtype});
    const at::Tensor dy = WithoutMemory({{rows, out()}, products_.dtype});
    std::vector<MatrixProduct> products;
    AddProducts({x, w.t(), WithoutMemory({{rows, out()}, result(0).dtype})},
                &products);
    AddProducts({dy.t(), x, WithoutMemory({{out(), in()}, products_.gradient})},
                &products);
    AddProducts({dy, w, WithoutMemory({{rows, in()}, operand(kX).dtype})},
                &products);
    return products;
  }

  Cost ForwardCost() const override {
    return {.flops = Flops(),
            .bytes = ForwardBytes(),
            .product_flops = Flops(),
            .products = 1};
  }
  Cost BackwardCost(Positions wanted) const override {
    const int products =
        (wanted.Has(kX) ? 1 : 0) + (wanted.Has(kWeight) ? 1 : 0);
    return {.flops = products * Flops(),
            .bytes = BackwardBytes(wanted),
            .product_flops = products * Flops(),
            .products = products};
  }

 private:
  at::Tensor Cast(const at::Tensor& t) const {
    return t.scalar_type() == products_.dtype ? t : t.to(products_.dtype);
  }
  int64_t CastBytes(const TensorType& type) const {
    return type.dtype == products_.dtype
               ? 0
               : TensorType{type.shape, products_.dtype}.bytes();
  }
  int64_t in() const { return operand(kWeight).shape[1]; }
  int64_t out() const { return operand(kWeight).shape[0]; }
  double Flops() const {
    return 2.0 * static_cast<double>(operand(kX).numel()) *
           static_cast<double>(out());
  }

  const LinearProducts products_;
  const char* const library_;
};

// A FewRowsOp that can absorb the norm before it.
class FewRowsLinearOp : public FewRowsOp {
 public:
  using FewRowsOp::FewRowsOp;

  FusedOp FuseWith(const Op& producer, int position) const override {
    const std::optional<double> eps = RmsNormEps(producer);
    if (!eps.has_value() || position != kX) return {};
    return WithNorm(producer, *eps);
  }
};

const char* LibraryFor(const ProgramTarget& target, at::ScalarType operands) {
  if (!target.device.is_cuda()) return "BLAS";
  return UsesCublasLt(operands, target.precision.allows_tf32()) ? "cuBLASLt"
                                                                : "cuBLAS";
}

}  // namespace

Value Linear(ProgramBuilder& b, Value x, Weight weight,
             const LinearOptions& options) {
  const TensorType from = b.type(x);
  const Value w = b.Read(weight, b.dtype(OpClass::kWeights));
  const int64_t out = b.type(w).shape[0], in = b.type(w).shape[1];
  TensorType to = {from.shape,
                   options.dtype.value_or(b.dtype(OpClass::kActivation))};
  int64_t width = 1;
  for (int i = 0; i < (options.from_heads ? 2 : 1); ++i) {
    width *= to.shape.back();
    to.shape.pop_back();
  }
  TESSERA_CHECK(width == in, b.spec(weight).name, ": x is ", ToString(from),
                ", the weight ", ToString(b.type(w)));
  if (options.heads.has_value()) {
    to.shape.push_back(*options.heads);
    to.shape.push_back(out / *options.heads);
  } else {
    to.shape.push_back(out);
  }
  const LinearProducts products = {b.dtype(OpClass::kMatmul),
                                   b.dtype(OpClass::kGradient),
                                   b.target().products};
  std::unique_ptr<Op> op;
  if (b.target().forward_only && b.type(w).dtype == products.dtype &&
      IsFewRows(b.target().device, from, b.type(w), to.dtype)) {
    op = std::make_unique<FewRowsLinearOp>(FewRowsSpec());
  } else {
    op = std::make_unique<LinearOp>(products,
                                    LibraryFor(b.target(), products.dtype));
  }
  return b.Add(std::move(op), b.ShortName(weight), {x, w}, {std::move(to)})[0];
}

std::optional<LinearProducts> LinearProductsOf(const Op& op) {
  const auto* const linear = dynamic_cast<const LinearOp*>(&op);
  if (linear == nullptr) return std::nullopt;
  return linear->products();
}

}  // namespace tessera
