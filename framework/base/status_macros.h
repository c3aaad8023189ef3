#ifndef FRAMEWORK_BASE_STATUS_MACROS_H_
#define FRAMEWORK_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns `expr`, an absl::Status, from the enclosing function if it is an
// error. The function returns absl::Status or absl::StatusOr<T>.
#define RETURN_IF_ERROR(expr)                                       \
  do {                                                              \
    if (absl::Status tessera_status = (expr); !tessera_status.ok()) \
      return tessera_status;                                        \
  } while (false)

// Evaluates `expr`, an absl::StatusOr<T>; returns its error, or assigns its
// value to `lhs`, which may be a declaration: ASSIGN_OR_RETURN(auto x, F()).
#define ASSIGN_OR_RETURN(lhs, expr)                                            \
  TESSERA_ASSIGN_OR_RETURN_(TESSERA_CONCAT_(tessera_statusor_, __LINE__), lhs, \
                            expr)

#define TESSERA_ASSIGN_OR_RETURN_(statusor, lhs, expr)     \
  auto statusor = (expr);                                  \
  if (!statusor.ok()) return std::move(statusor).status(); \
  lhs = *std::move(statusor)
#define TESSERA_CONCAT_(a, b) TESSERA_CONCAT_INNER_(a, b)
#define TESSERA_CONCAT_INNER_(a, b) a##b

#endif  // FRAMEWORK_BASE_STATUS_MACROS_H_
