#include "trainers/run/non_finite_diagnosis.h"

#include <ATen/ATen.h>

#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/optim/gradient_norm.h"

namespace tessera {

absl::Status CheckFinite(Session& session, int64_t steps, int64_t samples) {
  std::optional<int64_t> bad;
  RETURN_IF_ERROR(
      StatusFromTorch([&] { bad = session.step().first_bad_step(); }));
  if (!bad.has_value()) return absl::OkStatus();
  // No step since then changed a weight, so its batch gives the same gradients
  // again.
  const int64_t behind = steps - *bad;
  const BatchLoader& loader = session.train_loader();
  ASSIGN_OR_RETURN(const Batch batch,
                   loader.Load(samples - behind * loader.global_batch()));
  RETURN_IF_ERROR(session.step().ComputeGradients(batch));
  double loss = 0;
  std::string parameter;
  RETURN_IF_ERROR(StatusFromTorchOr([&]() -> absl::Status {
    loss = session.step().metrics().loss.item<double>();
    const ParameterStore& parameters = *session.state().parameters;
    at::Tensor bad = NonFiniteGradients(parameters);
    if (parameters.sharding().divides_gradients()) {
      RETURN_IF_ERROR(session.group().AllReduceSum(bad));
    }
    bad = bad.cpu();
    for (int64_t i = 0; i < bad.numel() && parameter.empty(); ++i) {
      if (bad.const_data_ptr<int64_t>()[i] == 0) continue;
      parameter = parameters.slices()[i].name;
    }
    return absl::OkStatus();
  }));
  const bool loss_alone = parameter.empty() && !std::isfinite(loss);
  return absl::AbortedError(absl::StrCat(
      "step ", *bad + 1, " gave a ", loss_alone ? "loss" : "gradient",
      " that is not finite (loss ", loss,
      loss_alone          ? ", every gradient is finite"
      : parameter.empty() ? ", overflow in the norm"
                          : absl::StrCat(", first in ", parameter),
      "); no weight was updated with it. Lower optimizer.adamw.lr, set "
      "optimizer.clip_norm, or use a wider precision.mode"));
}

}  // namespace tessera
