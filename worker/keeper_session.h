// Inside the worker library: a worker's session with its keeper.
#ifndef WORKER_KEEPER_SESSION_H_
#define WORKER_KEEPER_SESSION_H_

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <bitset>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/arena/layout.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"
#include "worker/grant_in_doubt.h"
#include "worker/worker.h"

namespace baton {

// Each call sends a request and waits for its reply. Thread-safe: the control stream's thread asks
// for tokens.
//
// If the keeper dies, `baton-driver` starts another, and the session can be resumed there
// (KeepResumable). Until then SetReady, TakeOver, Listen, Connect, Grant, Revoke and the requests
// about descriptors wait. They send their request again under its number, so it is executed once.
//
// A caller waits for 10 s at most, however many keepers die meanwhile, and before that for a caller
// of another thread. If it has waited in vain, its request may still be executed, and until it is
// answered nothing more is asked: later calls fail at once, with kUnavailable, so that many of them
// together do not stall the worker. Once the keeper answers, the session revokes the grants and
// regions that were made too late for their callers, and the grants of which Revoke() has failed
// so.
//
// Those whose names begin with Begin wait for nothing. A keeper that follows is not asked again by
// the session, since a caller can ask again for a descriptor.
class KeeperSession {
 public:
  static constexpr int kReplyTimeoutMs = 10'000;

  // Returns when an event of `socket` has come or `timeout_ms` is over, or earlier. The socket's
  // descriptor may be -1.
  using Wait = std::function<void(pollfd socket, int timeout_ms)>;

  explicit KeeperSession(FileDescriptor socket) : channel_(std::move(socket)) {}

  // Makes these requests wait with `wait` alone, on their caller's thread. Call it before the first
  // of them. `wait` must not call any of them.
  void WaitWith(Wait wait) { wait_ = std::move(wait); }

  // For tests, which wait for no answer that never comes. No other thread may use the session.
  void SetReplyTimeout(int timeout_ms) { reply_timeout_ms_ = timeout_ms; }

  // Connects to `socket` for a session with the keeper of `service`.
  static absl::StatusOr<FileDescriptor> Reach(const std::string& socket,
                                              const std::string& service);

  int fd() const { return channel_.fd(); }

  // Makes the session go on with the next keeper at `socket`. Call it after Attach has returned
  // `attached`. Does nothing if `socket` is empty, or `attached` has no key because no keeper
  // follows.
  void KeepResumable(const std::string& socket, const internal::Attached& attached);
  bool resumable() const { return !key_.empty(); }
  // Grows whenever fd() becomes another socket.
  uint32_t sockets_used() const { return sockets_used_.load(std::memory_order_relaxed); }
  // Resumes the session after the socket has closed. Never blocks: call it every few milliseconds.
  // Returns true when the session is resumed, and false as long as there is no answer; fd() changes
  // with each attempt. An error: the session is over. REQUIRES: resumable().
  absl::StatusOr<bool> Resume();

  // Takes answers for which nobody waits, and tells who began a request what has become of it.
  // Never blocks: call it when fd() is readable, and now and then.
  void Settle();

  // `descriptors` receives those of the reply. If the keeper dies before it answers, Attach asks
  // the next one at `socket`, unless `socket` is empty. The third such death is an error.
  absl::StatusOr<internal::Attached> Attach(const WorkerOptions& options, uint32_t layout_version,
                                            const std::string& socket,
                                            std::vector<FileDescriptor>* descriptors);
  absl::Status SetReady();
  absl::Status TakeOver(absl::Span<const uint32_t> shards);
  // Asks again while the broker has not let go of the worker, for at most twice the time of a
  // reply.
  absl::Status Detach();
  absl::StatusOr<std::string> NewToken();
  absl::StatusOr<uint16_t> Listen(const std::string& host, uint16_t port);
  absl::StatusOr<internal::Connecting> Connect(uint32_t shard, const std::string& host,
                                               uint16_t port, std::string_view private_data,
                                               uint64_t tag);
  // `descriptor`: 0, or of the held memfd that has the range. Then Grant::id is a region's.
  absl::StatusOr<Worker::Grant> Grant(uint64_t offset, uint64_t length, uint32_t access,
                                      uint64_t descriptor = 0);
  absl::Status Revoke(uint32_t grant);
  absl::Status RevokeRegion(uint32_t region);
  // The grant that is not answered for, if there is one.
  const GrantInDoubt& in_doubt() const { return in_doubt_; }
  // These do the same as those of Worker.
  absl::StatusOr<uint64_t> HoldDescriptor(int fd, uint64_t tag);
  absl::StatusOr<int> TakeDescriptor(uint64_t number);
  absl::Status DropDescriptor(uint64_t number);
  absl::StatusOr<std::vector<uint64_t>> HeldDescriptors(uint64_t tag);
  absl::Status BeginHoldDescriptor(int fd, uint64_t tag,
                                   std::function<void(absl::StatusOr<uint64_t>)> done);
  absl::Status BeginDropDescriptor(uint64_t number, std::function<void(absl::Status)> done);

 private:
  bool IsUp();
  using Reply = absl::StatusOr<internal::WorkerReply>;
  // A request for which nobody waits. Settle calls `done` with `reply` once there is one.
  struct Begun {
    uint64_t number = 0;
    uint64_t deadline_ns = 0;
    std::function<void(const Reply&)> done;
    std::optional<Reply> reply = {};
  };

  // `received` takes what comes with the reply. `sent` goes with the request and stays the
  // caller's; -1: none does.
  absl::StatusOr<internal::WorkerReply> Ask(const internal::WorkerRequest& request,
                                            const Wait& wait = {},
                                            std::vector<FileDescriptor>* received = nullptr,
                                            int sent = -1);
  absl::StatusOr<internal::WorkerReply> AskOnce(const internal::WorkerRequest& request,
                                                const Wait& wait,
                                                std::vector<FileDescriptor>* received_descriptors,
                                                int passed);
  absl::Status SendOnce(const internal::WorkerRequest& request, const Wait& wait, int passed);
  absl::Status AwaitReplies(const Wait& wait, uint64_t number, internal::WorkerReply* last,
                            std::vector<FileDescriptor>* descriptors);
  absl::Status CheckPassable(int fd, uint64_t tag);
  absl::Status Begin(internal::WorkerRequest request, int passed,
                     std::function<void(const Reply&)> done);
  void EndBegun();
  void TakeReply(const internal::WorkerReply& reply, uint64_t awaited);
  void TakeLateReplies();
  void RevokeUnwanted();
  bool SendUnawaited(internal::WorkerRequest request);
  absl::Status Postpone(const internal::WorkerRequest& request, absl::Status why);
  bool IsDue(uint64_t number) const { return !due_.empty() && due_.back().number() == number; }
  absl::Status Receive(internal::WorkerReply* reply, const Wait& wait,
                       std::vector<FileDescriptor>* descriptors);
  absl::StatusOr<bool> ResumeLocked();
  absl::Status SendAgain();
  absl::Status AwaitResumption(const Wait& wait);
  absl::Status AskForSession(const std::string& socket);
  absl::Status UseNextKeeper(const std::string& socket);
  // Returns how long the caller may still wait.
  int LeftMs() const;

  Wait wait_;                       // empty: poll(2)
  const pid_t process_ = getpid();  // the process that has the session
  uint64_t ReplyTimeoutNs() const {
    return uint64_t{1'000'000} * static_cast<uint64_t>(reply_timeout_ms_);
  }

  int reply_timeout_ms_ = kReplyTimeoutMs;
  std::mutex mutex_;
  MessageChannel channel_;    // guarded by mutex_
  uint64_t deadline_ns_ = 0;  // guarded by mutex_; the caller's, of CLOCK_MONOTONIC
  // Guarded by mutex_: the requests that were sent and not answered, oldest first. At most: those
  // that revoke the unwanted grants, or another, and Detach.
  std::deque<internal::WorkerRequest> due_;
  std::optional<Begun> begun_;  // guarded by mutex_
  // Guarded by mutex_: somebody has waited in vain for the replies that are due, or for a keeper.
  bool is_silent_ = false;
  // Guarded by mutex_: grants that nobody has, and regions, at arena::GrantOfRegion().
  std::bitset<arena::kGrants + arena::kRegions> unwanted_;
  uint64_t unwanted_descriptor_ = 0;  // guarded by mutex_: held when nobody waited for it any more
  GrantInDoubt in_doubt_;             // the one in due_
  // Guarded by mutex_: whether the keeper at the other end knows the session.
  enum class Tie { kUp, kLost, kAsked };
  Tie tie_ = Tie::kUp;
  absl::Status over_;         // guarded by mutex_; why the session cannot be resumed
  uint64_t last_number_ = 0;  // guarded by mutex_; the last request's
  std::atomic<bool> takes_descriptors_{false};  // the keeper does, as its last reply said
  std::atomic<uint32_t> sockets_used_{0};
  // Set by KeepResumable.
  std::string socket_, key_;
  uint64_t worker_id_ = 0;
};

}  // namespace baton

#endif  // WORKER_KEEPER_SESSION_H_
