// What a service's keeper says of itself, asked on its management socket: also while control is
// dead or stopped. Every call is bounded in time.
#ifndef TESTS_HARNESS_KEEPER_VIEW_H_
#define TESTS_HARNESS_KEEPER_VIEW_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton::harness {

class KeeperView {
 public:
  // `state_dir`: batond's.
  static absl::StatusOr<std::unique_ptr<KeeperView>> Connect(const std::string& state_dir,
                                                             const std::string& service);

  absl::StatusOr<internal::Description> Describe();
  absl::StatusOr<std::vector<v1::Upgrade>> ListUpgrades();  // the newest first
  // What has happened since the last call, as far as the keeper's log reaches back.
  absl::StatusOr<std::vector<v1::Event>> NewEvents();

 private:
  KeeperView(std::string path, MessageChannel channel)
      : path_(std::move(path)), channel_(std::move(channel)) {}

  // Asks the next keeper if the one that was connected has ended.
  absl::StatusOr<internal::ManagementReply> Ask(internal::ManagementRequest request);
  absl::StatusOr<internal::ManagementReply> AskOnce(const internal::ManagementRequest& request);

  const std::string path_;
  MessageChannel channel_;
  uint64_t last_id_ = 0;
  uint64_t last_event_ = 0;
};

}  // namespace baton::harness

#endif  // TESTS_HARNESS_KEEPER_VIEW_H_
