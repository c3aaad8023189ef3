#ifndef FRAMEWORK_CUDA_RECORDED_WORK_H_
#define FRAMEWORK_CUDA_RECORDED_WORK_H_

#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/cuda_graph.h"

namespace tessera {

// Work that is enqueued anew each time, or, with a graph, recorded after two
// runs and launched from then on.
class RecordedWork {
 public:
  // What was recorded is given up: the next run records anew. Null: enqueues.
  void SetGraph(std::unique_ptr<CudaGraph> graph) { graph_ = std::move(graph); }
  const CudaGraph* graph() const { return graph_.get(); }

  // `issue` enqueues the work, the same each time.
  absl::Status Do(absl::FunctionRef<absl::Status()> issue) {
    if (graph_ == nullptr) return issue();
    if (rehearsals_ < kRehearsals) {
      RETURN_IF_ERROR(graph_->Rehearse(issue));
      ++rehearsals_;
      return absl::OkStatus();
    }
    if (!graph_->captured()) RETURN_IF_ERROR(graph_->Capture(issue));
    return graph_->Launch();
  }

 private:
  // The first loads kernels and creates handles; the second finds them.
  static constexpr int kRehearsals = 2;

  std::unique_ptr<CudaGraph> graph_;
  int rehearsals_ = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_RECORDED_WORK_H_
