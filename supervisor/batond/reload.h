// Sends requests to running keepers over their management sockets, and holds a reload for which
// some of them have not answered yet.
#ifndef SUPERVISOR_BATOND_RELOAD_H_
#define SUPERVISOR_BATOND_RELOAD_H_

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/baton/internal/batond.pb.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/config/reload.h"

namespace baton {

// Sends `request` to the keeper at `socket_path`. `io` calls `done` once, after this has returned,
// with the keeper's reply or the error that it answered. kUnavailable: the keeper cannot be
// reached. kDeadlineExceeded: it has not answered within `timeout`. Never waits.
void CallKeeper(boost::asio::io_context& io, const std::string& socket_path,
                internal::ManagementRequest request, std::chrono::milliseconds timeout,
                std::function<void(absl::StatusOr<internal::ManagementReply>)> done);

// Puts the answer of `running`'s keeper into `taken`: the configuration that is in force, and the
// fields that the keeper did not take. After an error the keeper goes on with `running`.
void NoteAnswer(const v1::ServiceConfig& running,
                const absl::StatusOr<internal::ConfigTaken>& answer, TakenConfig* taken);

// Returns the answer for control and operators, without the configuration.
internal::BatondReply DescribeReload(const TakenConfig& taken);

// A reload for which some keepers have not answered yet.
struct ReloadUnderWay {
  using Done = std::function<void(absl::StatusOr<internal::BatondReply>)>;

  TakenConfig taken;
  size_t unanswered = 0;  // keepers
  Done done;
  internal::ControlConfig former;  // of control, before the reload
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_RELOAD_H_
