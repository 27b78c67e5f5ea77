#include "lib/verbs/mlx5/format.h"

namespace baton::verbs::mlx5 {
namespace {

struct Row {
  uint8_t syndrome;
  CompletionStatus status;
};

constexpr Row kRows[] = {
    {MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, CompletionStatus::kLocalLengthError},
    {MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, CompletionStatus::kLocalQpError},
    {MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, CompletionStatus::kLocalProtectionError},
    {MLX5_CQE_SYNDROME_WR_FLUSH_ERR, CompletionStatus::kFlushError},
    {MLX5_CQE_SYNDROME_BAD_RESP_ERR, CompletionStatus::kBadResponse},
    {MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, CompletionStatus::kRemoteInvalidRequest},
    {MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR, CompletionStatus::kRemoteAccessError},
    {MLX5_CQE_SYNDROME_REMOTE_OP_ERR, CompletionStatus::kRemoteOperationError},
    {MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, CompletionStatus::kRetryExceeded},
    {MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, CompletionStatus::kRnrRetryExceeded},
};
constexpr uint8_t kUnknown = 0xff;

}  // namespace

CompletionStatus StatusOf(uint8_t syndrome) {
  for (const Row& row : kRows) {
    if (row.syndrome == syndrome) return row.status;
  }
  return CompletionStatus::kGeneralError;
}

uint8_t SyndromeOf(CompletionStatus status) {
  for (const Row& row : kRows) {
    if (row.status == status) return row.syndrome;
  }
  return kUnknown;
}

}  // namespace baton::verbs::mlx5
