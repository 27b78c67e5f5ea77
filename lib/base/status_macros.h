#ifndef LIB_BASE_STATUS_MACROS_H_
#define LIB_BASE_STATUS_MACROS_H_

#include "absl/status/status.h"

#define BATON_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                        \
    if (absl::Status baton_status_ = (expression); !baton_status_.ok()) return baton_status_; \
  } while (false)

#define BATON_CONCAT_INNER_(a, b) a##b
#define BATON_CONCAT_(a, b) BATON_CONCAT_INNER_(a, b)
#define BATON_ASSIGN_OR_RETURN(lhs, expression) \
  BATON_ASSIGN_OR_RETURN_IMPL_(BATON_CONCAT_(baton_status_or_, __LINE__), lhs, expression)
#define BATON_ASSIGN_OR_RETURN_IMPL_(status_or, lhs, expression) \
  auto status_or = (expression);                                 \
  if (!status_or.ok()) return status_or.status();                \
  lhs = std::move(status_or).value()

#endif  // LIB_BASE_STATUS_MACROS_H_
