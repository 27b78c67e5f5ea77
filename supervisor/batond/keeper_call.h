// Sends a request to a running keeper over its management socket.
#ifndef SUPERVISOR_BATOND_KEEPER_CALL_H_
#define SUPERVISOR_BATOND_KEEPER_CALL_H_

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton {

// Sends `request` to the keeper at `socket_path`. `io` calls `done` once, after this has returned,
// with the keeper's reply or the error that it answered. kUnavailable: the keeper cannot be
// reached. kDeadlineExceeded: it has not answered within `timeout`. Never waits.
void CallKeeper(boost::asio::io_context& io, const std::string& socket_path,
                internal::ManagementRequest request, std::chrono::milliseconds timeout,
                std::function<void(absl::StatusOr<internal::ManagementReply>)> done);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_KEEPER_CALL_H_
