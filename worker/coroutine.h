// Coroutines on the worker library: one for each connection of a shard that this worker owns.
//
//   class Adder final : public baton::CoroutineService {
//     baton::CoTask Serve(baton::CoConnection& connection) override {
//       uint64_t total = Load(connection.state());  // what was committed, whoever committed it
//       for (;;) {
//         const baton::Completion message = co_await connection.Receive();
//         total += NumberIn(message);
//         ...SetState(total), Send(reply)...
//       }
//     }
//   };
//
// A coroutine lives in one worker, and its frame does not survive that worker. A successor calls
// Serve again at the connection's next completion, with the state that was committed last. So:
//
// 1. What a coroutine stages between two co_await belongs to the transaction that acknowledges the
//    completion which resumed it. With CommitMode::kAfterEachCompletion that transaction has no
//    other completion; with kAfterEachBatch it has those of the whole batch.
// 2. If the worker dies before the commit, the successor's coroutine receives the same completion.
//    If it dies after the commit, none of the successors receives it.
// 3. Local variables do not survive. Before each co_await, the coroutine stages with SetState what
//    Serve needs to come back to this co_await.
// 4. A coroutine waits for one thing. A completion that it does not wait for goes to OnUnawaited.
//    The library keeps none back: the next commit acknowledges it, and then nobody receives it
//    again.
//
// A coroutine ends with `co_return absl::OkStatus()`, and its connection is disconnected. One that
// returns an error or throws ends the same way, and what it staged is undone: see OnFailure.
#ifndef WORKER_COROUTINE_H_
#define WORKER_COROUTINE_H_

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/worker.h"

namespace baton {

class CoroutineService;

// A connection, as its coroutine sees it. CoroutineService owns it, and it is valid as long as the
// coroutine.
//
// Thread-compatible: the worker's thread.
class CoConnection {
  enum class Awaited : uint8_t { kNothing, kMessage, kSend, kEnd, kAny };

 public:
  CoConnection(const CoConnection&) = delete;
  CoConnection& operator=(const CoConnection&) = delete;

  // `co_await` takes this. It returns the completion, and the views of the connection are new then.
  class Awaiting {
   public:
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<>) const noexcept {
      connection_->awaited_ = awaited_;
      connection_->awaited_tag_ = tag_;
    }
    Completion await_resume() const noexcept { return connection_->completion_; }

   private:
    friend class CoConnection;
    Awaiting(CoConnection* connection, Awaited awaited, uint64_t tag = 0)
        : connection_(connection), awaited_(awaited), tag_(tag) {}

    CoConnection* connection_;
    Awaited awaited_;
    uint64_t tag_;
  };

  // The next message. The coroutine or OnConnectRequest posts the receives.
  Awaiting Receive() { return {this, Awaited::kMessage}; }
  // The completion of a send with this tag. Await it before anything else after Shard::Send: a
  // completion that comes while the coroutine waits for a message goes to OnUnawaited.
  Awaiting Sent(uint64_t tag) { return {this, Awaited::kSend, tag}; }
  // The end of the connection. The coroutine is destroyed at its next co_await.
  Awaiting Disconnected() { return {this, Awaited::kEnd}; }
  // Any completion, also one with an error. Completion::kind says which.
  Awaiting Next() { return {this, Awaited::kAny}; }

  Connection& connection() const { return *connection_; }
  Shard& shard() const { return connection_->shard(); }
  absl::Span<const uint8_t> state() const { return connection_->state(); }
  uint32_t state_version() const { return connection_->state_version(); }

 private:
  friend class CoTask;
  friend class CoroutineService;

  CoConnection() = default;

  // Returns null if the frame does not fit.
  void* TakeFrame(size_t bytes) noexcept;
  void NoteException() noexcept;
  bool Awaits(const Completion& completion) const;
  void Resume(const Completion& completion);
  // Returns whether no coroutine is suspended here.
  bool over() const { return !coroutine_ || coroutine_.done(); }
  void Destroy();

  Connection* connection_ = nullptr;  // null: not in use
  uint32_t shard_index_ = 0;
  Awaited awaited_ = Awaited::kNothing;
  uint64_t awaited_tag_ = 0;
  Completion completion_;  // the one that has resumed the coroutine
  std::coroutine_handle<> coroutine_;
  absl::Status failure_;  // what the coroutine has returned or thrown
  std::byte* frame_ = nullptr;
  size_t frame_room_ = 0;
  size_t frame_bytes_ = 0;  // that the coroutine needs, or would have needed
};

// Serve returns this. A coroutine is a member function of a CoroutineService, or another function,
// with one more parameter: `CoConnection&`.
class [[nodiscard]] CoTask {
 public:
  class promise_type {
   public:
    explicit promise_type(CoConnection& connection) : connection_(&connection) {}
    promise_type(const CoroutineService&, CoConnection& connection) : connection_(&connection) {}

    static void* operator new(size_t bytes, CoConnection& connection) noexcept {
      return connection.TakeFrame(bytes);
    }
    static void* operator new(size_t bytes, const CoroutineService&,
                              CoConnection& connection) noexcept {
      return connection.TakeFrame(bytes);
    }
    // The memory is the CoroutineService's.
    static void operator delete(void*) noexcept {}

    static CoTask get_return_object_on_allocation_failure() noexcept { return CoTask(); }
    CoTask get_return_object() noexcept {
      return CoTask(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_always final_suspend() const noexcept { return {}; }
    void return_value(absl::Status status) noexcept { connection_->failure_ = std::move(status); }
    void unhandled_exception() noexcept { connection_->NoteException(); }

   private:
    CoConnection* const connection_;
  };

 private:
  friend class CoroutineService;

  CoTask() = default;
  explicit CoTask(std::coroutine_handle<> coroutine) : coroutine_(coroutine) {}

  std::coroutine_handle<> coroutine_;
};

struct CoroutineOptions {
  // At once; CoroutineService allocates memory for all of them when it is made.
  // Capacity::connections of the service is enough.
  uint32_t coroutines = 1024;
  // The largest frame of a coroutine. The compiler decides how large one is; if it does not fit,
  // OnFailure is told its size.
  uint32_t frame_bytes = 4096;
};

// A Service with a coroutine for each connection. The application implements this class, gives it
// to one Worker, and destroys the Worker first. A coroutine that is left then, because the
// service's driver is gone, is destroyed with this object, so destructors of its variables must not
// use the derived class. Connection::context is this class's, and the application must not set it.
// A coroutine must not call Worker::Poll, Wait or Run, which may destroy it while it runs.
//
// Thread-compatible: the worker's thread.
class CoroutineService : public Service {
 public:
  explicit CoroutineService(const CoroutineOptions& options);
  CoroutineService(const CoroutineService&) = delete;
  CoroutineService& operator=(const CoroutineService&) = delete;
  ~CoroutineService() override;

  uint32_t running() const { return static_cast<uint32_t>(count_ - free_.size()); }

  // A class that overrides one of these calls the one here first. OnRelease and OnLost destroy the
  // shard's coroutines; their variables must not stage anything when they are destroyed.
  absl::Status OnAdopt(Shard& shard) override;
  void OnRelease(Shard& shard) override;
  void OnLost(Shard& shard) override;
  void OnCompletion(Shard& shard, const Completion& completion) final;

 protected:
  // The coroutine of a connection. It starts at the first completion of a connection that has none
  // in this worker: kEstablished of a new connection, any completion without an error after a
  // takeover. It runs to its first co_await, and then gets that completion if it waits for it.
  virtual CoTask Serve(CoConnection& connection) = 0;

  // A peer asks. Posts receives and answers with Accept or Reject. After an error the connection is
  // refused.
  virtual absl::Status OnConnectRequest(Shard& shard, Connection& connection) = 0;

  // The coroutine does not wait for `completion`, or the connection has none, because it ends.
  // After an error the connection is disconnected. By default a message is an error, because it
  // would be lost, and everything else is none. A service with shared receives posts another one
  // here for each kReceive, or the messages of connections that end use up all of them.
  virtual absl::Status OnUnawaited(Shard& shard, const Completion& completion);

  // The coroutine has thrown or returned an error, did not start (kResourceExhausted), or a
  // function above has returned `error`. The connection is being disconnected, and has no coroutine
  // any more. What was staged for the completion has no effect with
  // CommitMode::kAfterEachCompletion, and grants of memory that it allocated are revoked. With the
  // other modes it stays staged, because the transaction has other completions, too. A service with
  // shared receives posts here while it has room: the one that the coroutine has posted for its
  // message may be undone.
  virtual void OnFailure([[maybe_unused]] Connection& connection,
                         [[maybe_unused]] const absl::Status& error) {}

 private:
  absl::Status Deliver(Shard& shard, const Completion& completion);
  absl::Status Start(Shard& shard, const Completion& completion);
  static absl::Status Outcome(Shard& shard, const Completion& completion);
  void Fail(Shard& shard, const Completion& completion, const absl::Status& error);
  void End(CoConnection* connection);
  void EndAll(uint32_t shard_index);

  const size_t count_;
  const size_t frame_bytes_;
  const std::unique_ptr<std::byte[]> frames_;
  const std::unique_ptr<CoConnection[]> connections_;
  std::vector<CoConnection*> free_;
  CoConnection refused_;  // stands for the coroutine of connections that have had an error
};

}  // namespace baton

#endif  // WORKER_COROUTINE_H_
