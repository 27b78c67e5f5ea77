#include "lib/nic/control_status.h"

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"

namespace baton::nic {
namespace {

struct Row {
  absl::StatusCode code;
  uint32_t error;
};
constexpr Row kRows[] = {
    {absl::StatusCode::kOk, 0},
    {absl::StatusCode::kInvalidArgument, EINVAL},
    {absl::StatusCode::kNotFound, ENOENT},
    {absl::StatusCode::kAlreadyExists, EADDRINUSE},
    {absl::StatusCode::kPermissionDenied, EACCES},
    {absl::StatusCode::kResourceExhausted, ENOSPC},
    {absl::StatusCode::kFailedPrecondition, EBUSY},
    {absl::StatusCode::kAborted, ECONNREFUSED},
    {absl::StatusCode::kUnavailable, ENOTCONN},
    {absl::StatusCode::kDeadlineExceeded, ETIMEDOUT},
    {absl::StatusCode::kDataLoss, EPROTO},
    {absl::StatusCode::kCancelled, ECANCELED},
    {absl::StatusCode::kInternal, EIO},
};

}  // namespace

uint32_t ErrnoOf(const absl::Status& status) {
  for (const Row& row : kRows) {
    if (row.code == status.code()) return row.error;
  }
  return EIO;
}

absl::StatusCode CodeOf(uint32_t error) {
  for (const Row& row : kRows) {
    if (row.error == error) return row.code;
  }
  return absl::StatusCode::kInternal;
}

control::Address ToControl(const verbs::Address& address) {
  control::Address message;
  PutText(address.host, message.host);
  message.port = address.port;
  return message;
}

verbs::Address FromControl(const control::Address& address) {
  return {TextOf(address.host), address.port};
}

control::Parameters ToControl(const verbs::ConnectionParameters& parameters) {
  control::Parameters message;
  message.responder_resources = parameters.responder_resources;
  message.initiator_depth = parameters.initiator_depth;
  message.retry_count = parameters.retry_count;
  message.rnr_retry_count = parameters.rnr_retry_count;
  BATON_CHECK(parameters.private_data.size() <= sizeof(message.private_data));
  message.private_bytes = static_cast<uint32_t>(parameters.private_data.size());
  std::copy(parameters.private_data.begin(), parameters.private_data.end(), message.private_data);
  return message;
}

absl::Status FromControl(const control::Parameters& message,
                         verbs::ConnectionParameters* parameters) {
  if (message.private_bytes > sizeof(message.private_data)) {
    return absl::InvalidArgumentError(absl::StrCat("private_bytes: ", message.private_bytes,
                                                   ", at most ", sizeof(message.private_data)));
  }
  parameters->responder_resources = message.responder_resources;
  parameters->initiator_depth = message.initiator_depth;
  parameters->retry_count = message.retry_count;
  parameters->rnr_retry_count = message.rnr_retry_count;
  parameters->private_data.assign(reinterpret_cast<const char*>(message.private_data),
                                  message.private_bytes);
  return absl::OkStatus();
}

}  // namespace baton::nic
