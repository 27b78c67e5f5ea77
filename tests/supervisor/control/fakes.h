// Stands in for the processes that control talks to: batond, and keepers.
#ifndef TESTS_SUPERVISOR_CONTROL_FAKES_H_
#define TESTS_SUPERVISOR_CONTROL_FAKES_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/batond.pb.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton {

// Stands in for the batond that has started a control: answers what that asks of it.
class FakeBatond {
 public:
  FakeBatond();
  ~FakeBatond() { Leave(); }
  FakeBatond(const FakeBatond&) = delete;
  FakeBatond& operator=(const FakeBatond&) = delete;

  // Control's end of a new socket; the one before is closed.
  FileDescriptor Connect();
  // What every request is answered with but one for a file, which it opens. In the place of a
  // program of Baton's it opens the one that runs: it is of this release.
  void SetReply(const internal::BatondReply& reply);
  // Says it without having been asked.
  void Tell(internal::BatondReply reply);

 private:
  void Leave();
  void Answer(MessageChannel* channel);

  std::mutex mutex_;
  internal::BatondReply reply_;              // guarded by mutex_
  std::unique_ptr<MessageChannel> channel_;  // guarded by mutex_ for what is sent
  std::thread thread_;
};

// A keeper as control sees it: answers Management messages from what a test has set, and records
// what it was asked.
//
// Thread-safe.
class FakeKeeper {
 public:
  explicit FakeKeeper(std::string socket_path);
  ~FakeKeeper() { Stop(); }

  void Start();
  void Stop();  // as if it died: the socket's file stays

  // What it says. Connections are answered in the order of their index.
  void SetDescription(internal::Description description);
  void SetConnections(std::vector<v1::Connection> connections);
  void AddToken(const std::string& token, uint64_t worker_id);
  void SetHandoff(internal::ManagementReply reply);
  // What is listed, the newest first.
  void SetUpgrades(std::vector<v1::Upgrade> upgrades);
  // What the next Upgrade or Rollback begins: how its answer has it, then how each list that is
  // asked for after that does, the last for ever.
  void PlanUpgrade(std::vector<v1::Upgrade> course);
  void RefuseUpgrades(absl::Status why);
  // What ListShardMoves has.
  void SetShardMoves(std::vector<v1::ShardMove> moves);
  // Each policy that it is to have from now on; otherwise it has whatever it is given.
  void RefusePolicies(absl::Status why);
  void EndDrains(bool end);           // each is over when it has begun
  void LoseUpgrades();                // takes an Upgrade and says nothing, to it and from then on
  void SetAnswering(bool answering);  // false: it takes requests and says nothing
  void ForgetWorkers(bool forget);    // ControlStream is answered with kNotFound
  void Log(const v1::Event& event);   // kept for subscribers to come

  // Waits, for at most ten seconds, until `wanted` is true of `times` requests.
  bool WaitForRequest(const std::function<bool(const internal::ManagementRequest&)>& wanted,
                      size_t times = 1);
  size_t CountRequests(const std::function<bool(const internal::ManagementRequest&)>& wanted);

 private:
  void Run();
  void Answer(const internal::ManagementRequest& request);
  internal::ManagementReply ReplyTo(const internal::ManagementRequest& request);
  void BeginUpgrade(internal::ManagementReply* reply);
  void ListUpgrades(internal::ManagementReply* reply);
  void HoldUpgrade(bool pause, internal::ManagementReply* reply);
  void Drain(const internal::ManagementRequest& request, internal::ManagementReply* reply);

  const std::string socket_path_;
  FileDescriptor wake_;
  std::thread thread_;
  FileDescriptor listening_;

  std::mutex mutex_;
  std::condition_variable asked_;
  bool stopping_ = false;
  bool answering_ = true;
  bool forget_workers_ = false;
  std::vector<internal::ManagementRequest> requests_;
  internal::Description description_;
  std::vector<v1::Connection> connections_;
  std::map<std::string, uint64_t> tokens_;
  internal::ManagementReply handoff_;
  std::deque<v1::Upgrade> upgrades_;  // the newest first
  std::deque<v1::Upgrade> course_;    // what comes next of the one under way
  bool upgrading_ = false;            // the first of upgrades_ is under way
  absl::Status upgrades_refused_, policies_refused_;
  bool end_drains_ = false;
  std::vector<v1::ShardMove> shard_moves_;
  bool lose_upgrades_ = false;
  std::vector<v1::Event> events_;
  bool subscribed_ = false;
  size_t events_sent_ = 0;  // to the present subscriber

  std::unique_ptr<MessageChannel> channel_;  // of the thread only
};

}  // namespace baton

#endif  // TESTS_SUPERVISOR_CONTROL_FAKES_H_
