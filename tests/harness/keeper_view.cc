#include "tests/harness/keeper_view.h"

#include <chrono>
#include <utility>

#include "lib/base/status_macros.h"
#include "supervisor/config/state_files.h"
#include "tests/harness/patience.h"

namespace baton::harness {
namespace {

constexpr std::chrono::milliseconds kAnswer{15'000};

}  // namespace

absl::StatusOr<std::unique_ptr<KeeperView>> KeeperView::Connect(const std::string& state_dir,
                                                                const std::string& service) {
  std::string path = ManagementSocketPath(state_dir, service);
  BATON_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectUnix(path));
  return std::unique_ptr<KeeperView>(
      new KeeperView(std::move(path), MessageChannel(std::move(socket))));
}

absl::StatusOr<internal::ManagementReply> KeeperView::Ask(internal::ManagementRequest request) {
  request.set_id(++last_id_);
  auto reply = AskOnce(request);
  if (!absl::IsUnavailable(reply.status())) return reply;
  BATON_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectUnix(path_));
  channel_ = MessageChannel(std::move(socket));
  return AskOnce(request);
}

absl::StatusOr<internal::ManagementReply> KeeperView::AskOnce(
    const internal::ManagementRequest& request) {
  BATON_RETURN_IF_ERROR(channel_.Send(request));
  internal::ManagementReply reply;
  do {
    BATON_RETURN_IF_ERROR(channel_.Receive(&reply, static_cast<int>(Patient(kAnswer).count())));
  } while (reply.id() != last_id_);
  return reply;
}

absl::StatusOr<internal::Description> KeeperView::Describe() {
  internal::ManagementRequest request;
  request.mutable_describe();
  BATON_ASSIGN_OR_RETURN(internal::ManagementReply reply, Ask(std::move(request)));
  return std::move(*reply.mutable_description());
}

absl::StatusOr<std::vector<v1::Upgrade>> KeeperView::ListUpgrades() {
  internal::ManagementRequest request;
  request.mutable_list_upgrades();
  BATON_ASSIGN_OR_RETURN(const internal::ManagementReply reply, Ask(std::move(request)));
  return std::vector<v1::Upgrade>(reply.upgrades().begin(), reply.upgrades().end());
}

// On a connection of its own each time: one that has subscribed would have to be read all the time.
absl::StatusOr<std::vector<v1::Event>> KeeperView::NewEvents() {
  BATON_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectUnix(path_));
  MessageChannel channel(std::move(socket));
  internal::ManagementRequest subscribe, describe;
  subscribe.mutable_subscribe()->set_after_sequence(last_event_);
  describe.set_id(++last_id_);  // answered behind the events that are logged
  describe.mutable_describe();
  BATON_RETURN_IF_ERROR(channel.Send(subscribe));
  BATON_RETURN_IF_ERROR(channel.Send(describe));
  std::vector<v1::Event> events;
  internal::ManagementReply reply;
  while (true) {
    BATON_RETURN_IF_ERROR(channel.Receive(&reply, static_cast<int>(Patient(kAnswer).count())));
    if (reply.id() == last_id_) return events;
    if (!reply.has_event()) continue;
    last_event_ = reply.event().sequence();
    events.push_back(std::move(*reply.mutable_event()));
  }
}

}  // namespace baton::harness
