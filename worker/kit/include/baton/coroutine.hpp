// Coroutines on the C++ interface, for C++20: one for each connection of a shard that this worker
// owns. It is all in this header, like baton.hpp.
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
//    completion which resumed it. With BATON_COMMIT_EACH_COMPLETION that transaction has no other
//    completion; with BATON_COMMIT_EACH_BATCH it has those of the whole batch.
// 2. If the worker dies before the commit, the successor's coroutine receives the same completion.
//    If it dies after the commit, none of the successors receives it.
// 3. Local variables do not survive. Before each co_await, the coroutine stages with SetState what
//    Serve needs to come back to this co_await.
// 4. A coroutine waits for one thing. A completion that it does not wait for goes to OnUnawaited.
//    The library keeps none back: the next commit acknowledges it, and then nobody receives it
//    again.
//
// A coroutine ends with `co_return baton::Status()`, and its connection is disconnected. One that
// returns an error or throws ends the same way, and what it staged is undone: see OnFailure.
#ifndef BATON_COROUTINE_HPP_
#define BATON_COROUTINE_HPP_

#if __cplusplus < 202002L
#error "baton/coroutine.hpp needs C++20"
#endif

#include <baton/baton.hpp>

#include <algorithm>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace baton {
inline namespace v0 {

class CoroutineService;

// A connection, as its coroutine sees it. CoroutineService owns it, and it is valid as long as the
// coroutine. The worker's thread alone may use it.
class CoConnection {
  enum class Awaited : uint8_t { kNothing, kMessage, kSend, kEnd, kAny };

 public:
  CoConnection(const CoConnection&) = delete;
  CoConnection& operator=(const CoConnection&) = delete;

  // `co_await` takes this, and returns the completion.
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

  Connection connection() const { return handle_; }
  Shard shard() const { return baton_connection_shard(handle_); }
  // Valid until the next co_await.
  View state() const { return connection().state(); }
  uint32_t state_version() const { return connection().state_version(); }

 private:
  friend class CoTask;
  friend class CoroutineService;

  CoConnection() = default;

  // Returns null if the frame does not fit, or if it is not the first: the coroutine of this
  // connection has called another one.
  void* TakeFrame(size_t bytes) noexcept {
    const bool taken = frame_bytes_ != 0;
    if (!taken) frame_bytes_ = bytes;
    return taken || bytes > frame_room_ ? nullptr : frame_;
  }
  void NoteException() noexcept {
#ifdef __cpp_exceptions
    try {
      throw;
    } catch (const std::exception& exception) {
      failure_ = {BATON_INTERNAL, std::string("the coroutine has thrown: ") + exception.what()};
    } catch (...) {
      failure_ = {BATON_INTERNAL, "the coroutine has thrown an exception of unknown kind"};
    }
#endif
  }
  bool Awaits(const Completion& completion) const;
  void Resume(const Completion& completion) {
    completion_ = completion;
    completion_.size =
        std::min(completion.size, sizeof(completion_));  // the library's may be newer
    awaited_ = Awaited::kNothing;
    coroutine_.resume();
  }
  // Returns whether no coroutine is suspended here.
  bool over() const { return !coroutine_ || coroutine_.done(); }
  void Destroy() {
    if (coroutine_) std::exchange(coroutine_, nullptr).destroy();
    awaited_ = Awaited::kNothing;
  }

  baton_connection* handle_ = nullptr;  // null: not in use
  uint32_t shard_index_ = 0;
  Awaited awaited_ = Awaited::kNothing;
  uint64_t awaited_tag_ = 0;
  Completion completion_ = {};  // the one that has resumed the coroutine
  std::coroutine_handle<> coroutine_;
  Status failure_;  // what the coroutine has returned or thrown
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
    // `Self` is the object of a coroutine that is a member function. It is a template's parameter
    // because GCC 12 does not look for its base classes here.
    explicit promise_type(CoConnection& connection) : connection_(&connection) {}
    template <typename Self>
    promise_type(Self&&, CoConnection& connection) : connection_(&connection) {}

    // Converts from the object. A template of `operator new` would do, but GCC 12 warns without
    // optimisation that `operator delete` is none.
    struct Object {
      template <typename Self>
      Object(Self&&) noexcept {}
    };
    static void* operator new(size_t bytes, CoConnection& connection) noexcept {
      return connection.TakeFrame(bytes);
    }
    static void* operator new(size_t bytes, Object, CoConnection& connection) noexcept {
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
    void return_value(Status status) noexcept { connection_->failure_ = std::move(status); }
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
  uint32_t coroutines = 1024;
  // The largest frame of a coroutine. The compiler decides how large one is; if it does not fit,
  // OnFailure is told its size.
  uint32_t frame_bytes = 4096;
  // The same as WorkerOptions::commit_mode.
  baton_commit_mode commit_mode = BATON_COMMIT_EACH_BATCH;
};

// A Service with a coroutine for each connection. The application implements this class, gives it
// to one Worker, and destroys the Worker first. A coroutine that is left then, because the
// service's driver is gone, is destroyed with this object, so destructors of its variables must not
// use the derived class. The context of connections is this class's, and the application must not
// set it. A coroutine must not call Worker::Poll, Wait or Run, which may destroy it while it runs.
class CoroutineService : public Service {
 public:
  explicit CoroutineService(const CoroutineOptions& options);
  CoroutineService(const CoroutineService&) = delete;
  CoroutineService& operator=(const CoroutineService&) = delete;
  ~CoroutineService() override {
    for (size_t i = 0; i < count_; ++i) connections_[i].Destroy();
  }

  uint32_t running() const { return static_cast<uint32_t>(count_ - free_.size()); }

  // A class that overrides one of these calls the one here first. OnRelease and OnLost destroy the
  // shard's coroutines; their variables must not stage anything when they are destroyed.
  bool OnAdopt(Shard shard) override {
    EndAll(shard.index());  // those that are left if an earlier Worker lost its driver
    return true;
  }
  void OnRelease(Shard shard) override { EndAll(shard.index()); }
  void OnLost(Shard shard) override { EndAll(shard.index()); }
  void OnCompletion(Shard shard, const Completion& completion) final;

 protected:
  // The coroutine of a connection. It starts at the first completion of a connection that has none
  // in this worker: BATON_ESTABLISHED of a new connection, any completion without an error after a
  // takeover. It runs to its first co_await, and then gets that completion if it waits for it.
  virtual CoTask Serve(CoConnection& connection) = 0;

  // A peer asks. Posts receives and answers with Accept or Reject. After an error the connection is
  // refused.
  virtual Status OnConnectRequest(Shard shard, Connection connection) = 0;

  // The coroutine does not wait for `completion`, or the connection has none, because it ends.
  // After an error the connection is disconnected. By default a message is an error, because it
  // would be lost, and everything else is none. A service with shared receives posts another one
  // here for each BATON_RECEIVE, or the messages of connections that end use up all of them.
  virtual Status OnUnawaited(Shard shard, const Completion& completion);

  // The coroutine has thrown or returned an error, did not start (BATON_RESOURCE_EXHAUSTED), or a
  // function above has returned `error`. The connection is being disconnected, and has no coroutine
  // any more. What was staged for the completion has no effect with BATON_COMMIT_EACH_COMPLETION.
  // A service whose coroutines allocate leases or accept streams calls baton_revoke_lost() here
  // then. With the other modes it stays staged, because the transaction has other completions, too.
  // A service with shared receives posts here while it has room: the one that the coroutine has
  // posted for its message may be undone.
  virtual void OnFailure(Connection /*connection*/, const Status& /*error*/) {}

 private:
  friend class CoConnection;

  static bool Succeeded(const Completion& completion) { return completion.status == BATON_SUCCESS; }
  static bool Ends(const Completion& completion) {
    return completion.kind == BATON_DISCONNECTED || completion.kind == BATON_CONNECT_FAILED;
  }
  static CoConnection* Of(Connection connection) {
    return static_cast<CoConnection*>(connection.context());
  }

  Status Deliver(Shard shard, const Completion& completion);
  Status Start(Shard shard, const Completion& completion);
  static Status Outcome(Shard shard, const Completion& completion);
  void Disconnect(Shard shard, Connection connection) const;
  void Fail(Shard shard, const Completion& completion, const Status& error);
  void End(CoConnection* connection);
  void EndAll(uint32_t shard_index);

  const size_t count_;
  const size_t frame_bytes_;
  const baton_commit_mode commit_mode_;
  const std::unique_ptr<std::byte[]> frames_;
  const std::unique_ptr<CoConnection[]> connections_;
  std::vector<CoConnection*> free_;
  CoConnection refused_;  // stands for the coroutine of connections that have had an error
};

inline bool CoConnection::Awaits(const Completion& completion) const {
  const bool succeeded = CoroutineService::Succeeded(completion);
  switch (awaited_) {
    case Awaited::kNothing:
      return false;
    case Awaited::kMessage:
      return completion.kind == BATON_RECEIVE && succeeded;
    case Awaited::kSend:
      return completion.kind == BATON_SEND && succeeded && completion.tag == awaited_tag_;
    case Awaited::kEnd:
      return CoroutineService::Ends(completion);
    case Awaited::kAny:
      return true;
  }
  return false;
}

inline CoroutineService::CoroutineService(const CoroutineOptions& options)
    : count_(options.coroutines),
      frame_bytes_((size_t{options.frame_bytes} + __STDCPP_DEFAULT_NEW_ALIGNMENT__ - 1) /
                   __STDCPP_DEFAULT_NEW_ALIGNMENT__ * __STDCPP_DEFAULT_NEW_ALIGNMENT__),
      commit_mode_(options.commit_mode),
      frames_(new std::byte[count_ * frame_bytes_]),
      connections_(new CoConnection[count_]) {
  free_.reserve(count_);
  for (size_t i = count_; i-- > 0;) {
    connections_[i].frame_ = frames_.get() + i * frame_bytes_;
    connections_[i].frame_room_ = frame_bytes_;
    free_.push_back(&connections_[i]);
  }
}

inline void CoroutineService::OnCompletion(Shard shard, const Completion& completion) {
  Connection connection = completion.connection;
  const Status status = Deliver(shard, completion);
  if (!status.ok()) Fail(shard, completion, status);
  if (!Ends(completion)) return;
  End(Of(connection));
  connection.set_context(nullptr);
}

inline Status CoroutineService::Deliver(Shard shard, const Completion& completion) {
  const Connection connection = completion.connection;
  if (completion.kind == BATON_CONNECT_REQUEST) return OnConnectRequest(shard, connection);
  if (connection.context() == nullptr && Succeeded(completion) && !Ends(completion)) {
    Status started = Start(shard, completion);
    if (!started.ok()) return started;
  }
  CoConnection* const running = Of(connection);
  if (running != nullptr && running->Awaits(completion)) {
    running->Resume(completion);
    return Outcome(shard, completion);
  }
  if (completion.kind == BATON_ESTABLISHED) return Status();
  Status status = OnUnawaited(shard, completion);
  // The connection of a coroutine that has returned or failed is being disconnected already.
  const bool ending = running != nullptr && running->over() && !Ends(completion);
  return ending ? Status() : status;
}

inline Status CoroutineService::OnUnawaited(Shard, const Completion& completion) {
  if (completion.kind != BATON_RECEIVE || !Succeeded(completion)) return Status();
  return {BATON_FAILED_PRECONDITION,
          "a message came while the coroutine did not wait for one, and would be lost: override "
          "OnUnawaited, or post receives only when the coroutine waits for a message next"};
}

inline Status CoroutineService::Start(Shard shard, const Completion& completion) {
  if (free_.empty()) {
    return {BATON_RESOURCE_EXHAUSTED, "all " + std::to_string(count_) +
                                          " coroutines are in use: raise "
                                          "CoroutineOptions::coroutines"};
  }
  CoConnection& started = *free_.back();
  free_.pop_back();
  started.handle_ = completion.connection;
  started.shard_index_ = shard.index();
  started.connection().set_context(&started);
  started.coroutine_ = Serve(started).coroutine_;
  if (started.coroutine_) return Outcome(shard, completion);
  return {BATON_RESOURCE_EXHAUSTED,
          "the coroutine's frame has " + std::to_string(started.frame_bytes_) + " bytes, and " +
              std::to_string(frame_bytes_) + " are there: raise CoroutineOptions::frame_bytes"};
}

// Disconnects if the coroutine has returned. Returns its error, or that there is no room to
// disconnect.
inline Status CoroutineService::Outcome(Shard shard, const Completion& completion) {
  const CoConnection& resumed = *Of(completion.connection);
  if (!resumed.over()) return Status();
  if (!resumed.failure_.ok()) return resumed.failure_;
  if (Ends(completion)) return Status();
  Status status = shard.Disconnect(completion.connection);
  return status.code() == BATON_RESOURCE_EXHAUSTED ? status : Status();
}

// The batch may have staged so much that there is no room for it.
inline void CoroutineService::Disconnect(Shard shard, Connection connection) const {
  const bool full = shard.Disconnect(connection).code() == BATON_RESOURCE_EXHAUSTED;
  if (!full || commit_mode_ != BATON_COMMIT_EACH_BATCH) return;
  (void)shard.Commit();
  (void)shard.Disconnect(connection);
}

inline void CoroutineService::Fail(Shard shard, const Completion& completion, const Status& error) {
  Connection connection = completion.connection;
  End(Of(connection));
  connection.set_context(&refused_);
  if (commit_mode_ == BATON_COMMIT_EACH_COMPLETION) shard.Abandon();
  if (!Ends(completion)) Disconnect(shard, connection);
  OnFailure(connection, error);
}

inline void CoroutineService::End(CoConnection* connection) {
  if (connection == nullptr || connection == &refused_) return;
  connection->Destroy();
  connection->handle_ = nullptr;
  connection->frame_bytes_ = 0;
  connection->failure_ = Status();
  free_.push_back(connection);
}

inline void CoroutineService::EndAll(uint32_t shard_index) {
  for (size_t i = 0; i < count_; ++i) {
    CoConnection& connection = connections_[i];
    if (connection.handle_ != nullptr && connection.shard_index_ == shard_index) End(&connection);
  }
}

}  // namespace v0
}  // namespace baton

#endif  // BATON_COROUTINE_HPP_
