#include <cerrno>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "lib/base/status.h"

namespace baton {
namespace {

TEST(ErrnoStatusTest, shouldSayWhatFailedAndWhy) {
  EXPECT_EQ(ErrnoStatus(ENOENT, "open /a").message(),
            "open /a: No such file or directory (errno 2)");
}

TEST(ErrnoStatusTest, shouldChooseTheCodeThatCallersActOn) {
  using absl::StatusCode;
  const struct {
    int error;
    StatusCode code;
  } kCases[] = {{ENOENT, StatusCode::kNotFound},
                {EEXIST, StatusCode::kAlreadyExists},
                {EADDRINUSE, StatusCode::kAlreadyExists},
                {EACCES, StatusCode::kPermissionDenied},
                {EPERM, StatusCode::kPermissionDenied},
                {ENOMEM, StatusCode::kResourceExhausted},
                {ENOSPC, StatusCode::kResourceExhausted},
                {EMFILE, StatusCode::kResourceExhausted},
                {ENFILE, StatusCode::kResourceExhausted},
                {ENOBUFS, StatusCode::kResourceExhausted},
                {ETOOMANYREFS, StatusCode::kResourceExhausted},
                {EINVAL, StatusCode::kInvalidArgument},
                {ENAMETOOLONG, StatusCode::kInvalidArgument},
                {ETIMEDOUT, StatusCode::kDeadlineExceeded},
                {ECONNREFUSED, StatusCode::kUnavailable},
                {ECONNRESET, StatusCode::kUnavailable},
                {EPIPE, StatusCode::kUnavailable},
                {ENETUNREACH, StatusCode::kUnavailable},
                {EHOSTUNREACH, StatusCode::kUnavailable},
                {EIO, StatusCode::kInternal}};
  for (const auto& item : kCases) EXPECT_EQ(ErrnoStatus(item.error, "x").code(), item.code);
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  BATON_ASSIGN_OR_RETURN(const int half, Half(value));
  BATON_ASSIGN_OR_RETURN(const int quarter, Half(half));
  BATON_RETURN_IF_ERROR(absl::OkStatus());
  return quarter;
}

TEST(StatusMacrosTest, shouldPassValuesOnAndErrorsUp) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
}

}  // namespace
}  // namespace baton
