#ifndef LIB_VERBS_MLX5_SYNDROME_H_
#define LIB_VERBS_MLX5_SYNDROME_H_

#include <cstdint>

#include "lib/verbs/verbs.h"

namespace baton::verbs::mlx5 {

// Translate MLX5_CQE_SYNDROME_* to CompletionStatus, as libmlx5 does (mlx5_handle_error_cqe in its
// cq.c), and back. An unknown syndrome is kGeneralError.
CompletionStatus StatusOf(uint8_t syndrome);
uint8_t SyndromeOf(CompletionStatus status);

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_SYNDROME_H_
