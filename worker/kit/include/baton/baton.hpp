// The C++ interface of Baton's worker library, for C++17 and later: the C interface (baton.h) in
// classes. It is all in this header, so it depends on no C++ library's binary interface.
//
//   class Echo : public baton::Service {
//     void OnCompletion(baton::Shard shard, const baton::Completion& done) override;
//   };
//   Echo echo;
//   baton::Worker worker;
//   baton::Status status = worker.Attach({"/run/baton/echo.sock", "echo"}, &echo);
//   if (status.ok()) status = worker.Listen("0.0.0.0", 7471);
//   if (status.ok()) status = worker.Run();
//
// baton.h says what each function does, when it fails, and which thread may call it. Nothing here
// but HeapResource throws. An exception that leaves a callback ends the process.
#ifndef BATON_BATON_HPP_
#define BATON_BATON_HPP_

#include <baton/baton.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#if __has_include(<memory_resource>) && defined(__cpp_exceptions)
#include <memory_resource>
#endif
#include <new>
#include <string>
#include <string_view>
#include <utility>

namespace baton {
// Keeps these classes apart from those of the same names inside the library.
inline namespace v0 {

// The outcome of a call.
class Status {
 public:
  Status() = default;
  Status(int code, std::string message) : code_(code), message_(std::move(message)) {}
  // REQUIRES: the last call of this thread returned `code`.
  static Status Of(int code) { return code == BATON_OK ? Status() : Status(code, baton_error()); }

  bool ok() const { return code_ == BATON_OK; }
  int code() const { return code_; }  // enum baton_code
  const std::string& message() const { return message_; }

 private:
  int code_ = BATON_OK;
  std::string message_;
};

using Buffer = baton_buffer;
using Completion = baton_completion;

// Bytes in shared memory. Do not keep a View beyond the callback.
struct View {
  const uint8_t* data = nullptr;
  size_t size = 0;
};

// The buffers of one request, at most 4. With more, the function that takes the request fails.
class Buffers {
 public:
  Buffers() = default;
  Buffers(const Buffer& one) : Buffers({one}) {}  // NOLINT: most requests have one
  Buffers(std::initializer_list<Buffer> buffers) : size_(static_cast<uint32_t>(buffers.size())) {
    size_t i = 0;
    for (const Buffer& one : buffers) {
      if (i < kMost) buffers_[i++] = one;
    }
  }
  const Buffer* data() const { return buffers_; }
  uint32_t size() const { return size_; }

 private:
  static constexpr size_t kMost = 4;
  Buffer buffers_[kMost] = {};
  uint32_t size_ = 0;
};

// A request of Shard::Send. The fields are those of struct baton_send_work.
struct SendWork {
  baton_opcode opcode = BATON_OP_SEND;
  Buffers buffers = {};
  uint64_t tag = 0;
  uint32_t immediate = 0;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  uint32_t invalidate_rkey = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  bool fence = false;
  bool solicited = false;
};

// A connection of a shard. A handle: copies refer to the same connection.
class Connection {
 public:
  Connection(baton_connection* handle) : handle_(handle) {}  // NOLINT: as a completion has it

  uint32_t index() const { return baton_connection_index(handle_); }
  uint32_t generation() const { return baton_connection_generation(handle_); }
  bool established() const { return baton_connection_established(handle_); }
  std::string_view peer_address() const {
    size_t length = 0;
    const char* const text = baton_connection_peer_address(handle_, &length);
    return {text, length};
  }
  View private_data() const {
    View view;
    view.data = baton_connection_private_data(handle_, &view.size);
    return view;
  }
  View state() const {
    View view;
    view.data = baton_connection_state(handle_, &view.size);
    return view;
  }
  uint32_t state_version() const { return baton_connection_state_version(handle_); }
  uint64_t next_send() const { return baton_connection_next_send(handle_); }
  uint64_t next_receive() const { return baton_connection_next_receive(handle_); }
  uint32_t send_room() const { return baton_connection_send_room(handle_); }
  uint32_t receive_room() const { return baton_connection_receive_room(handle_); }
  void set_context(void* context) { baton_connection_set_context(handle_, context); }
  void* context() const { return baton_connection_context(handle_); }

  baton_connection* handle() const { return handle_; }

 private:
  baton_connection* handle_;
};

// The heap of a shard. A handle, like Connection.
class Heap {
 public:
  explicit Heap(baton_shard* shard) : shard_(shard) {}

  // `alignment`: a power of two up to 4096; 0: 64.
  Status Allocate(uint64_t bytes, Buffer* buffer, uint32_t alignment = 0) {
    return Status::Of(baton_allocate(shard_, bytes, alignment, buffer));
  }
  Status AllocateScratch(uint64_t bytes, Buffer* buffer, uint32_t alignment = 0) {
    return Status::Of(baton_allocate_scratch(shard_, bytes, alignment, buffer));
  }
  Status Keep(const Buffer& buffer) { return Status::Of(baton_keep(shard_, &buffer)); }
  Status Free(const Buffer& buffer) { return Status::Of(baton_free(shard_, &buffer)); }
  template <typename Visit>  // (const Buffer&, bool kept)
  Status ForEachAllocated(Visit visit) {
    return Status::Of(baton_for_each_allocated(
        shard_,
        [](void* context, const Buffer* buffer, bool kept) {
          (*static_cast<Visit*>(context))(*buffer, kept);
        },
        &visit));
  }
  Status statistics(baton_heap_statistics* statistics) {
    statistics->size = sizeof(*statistics);
    return Status::Of(baton_get_heap_statistics(shard_, statistics));
  }

 private:
  baton_shard* shard_;
};

// A shard that the worker owns, and the transaction that is open on it. A handle, like Connection.
class Shard {
 public:
  Shard(baton_shard* handle) : handle_(handle) {}  // NOLINT: as a callback has it

  uint32_t index() const { return baton_shard_index(handle_); }
  uint64_t epoch() const { return baton_shard_epoch(handle_); }
  View state() const {
    View view;
    view.data = baton_shard_state(handle_, &view.size);
    return view;
  }
  uint32_t state_version() const { return baton_shard_state_version(handle_); }
  template <typename Visit>  // (Connection)
  void ForEachConnection(Visit visit) const {
    baton_for_each_connection(
        handle_, [](void* context, baton_connection* one) { (*static_cast<Visit*>(context))(one); },
        &visit);
  }

  Status Receive(Connection connection, const Buffers& buffers, uint64_t tag = 0) {
    return Status::Of(
        baton_receive(handle_, connection.handle(), buffers.data(), buffers.size(), tag));
  }
  Status ReceiveShared(const Buffers& buffers, uint64_t tag = 0) {
    return Status::Of(baton_receive_shared(handle_, buffers.data(), buffers.size(), tag));
  }
  Status Send(Connection connection, const SendWork& work) {
    baton_send_work request = {};
    request.size = sizeof(request);
    request.opcode = work.opcode;
    request.buffers = work.buffers.data();
    request.buffer_count = work.buffers.size();
    request.immediate = work.immediate;
    request.tag = work.tag;
    request.remote_address = work.remote_address;
    request.rkey = work.rkey;
    request.invalidate_rkey = work.invalidate_rkey;
    request.compare_add = work.compare_add;
    request.swap = work.swap;
    request.fence = work.fence;
    request.solicited = work.solicited;
    return Status::Of(baton_send(handle_, connection.handle(), &request));
  }
  Status SetState(Connection connection, const void* state, size_t length, uint32_t version) {
    return Status::Of(baton_set_state(handle_, connection.handle(), state, length, version));
  }
  Status SetShardState(const void* state, size_t length, uint32_t version) {
    return Status::Of(baton_set_shard_state(handle_, state, length, version));
  }
  Status Accept(Connection connection, std::string_view private_data = {}) {
    return Status::Of(baton_accept(handle_, connection.handle(), nullptr, private_data.data(),
                                   private_data.size()));
  }
  Status Accept(Connection connection, Shard target, std::string_view private_data = {}) {
    return Status::Of(baton_accept(handle_, connection.handle(), target.handle_,
                                   private_data.data(), private_data.size()));
  }
  Status Reject(Connection connection, std::string_view private_data = {}) {
    return Status::Of(
        baton_reject(handle_, connection.handle(), private_data.data(), private_data.size()));
  }
  Status Disconnect(Connection connection) {
    return Status::Of(baton_disconnect(handle_, connection.handle()));
  }
  Status Connect(const char* host, uint16_t port, std::string_view private_data, uint64_t tag) {
    return Status::Of(
        baton_connect(handle_, host, port, private_data.data(), private_data.size(), tag, nullptr));
  }
  Heap heap() { return Heap(handle_); }
  Status Commit() { return Status::Of(baton_commit(handle_)); }
  void Abandon() { baton_abandon(handle_); }

  uint32_t shared_receive_room() const { return baton_shared_receive_room(handle_); }
  uint32_t shared_receives_outstanding() const {
    return baton_shared_receives_outstanding(handle_);
  }
  uint32_t next_shared_receive() const { return baton_next_shared_receive(handle_); }

  baton_shard* handle() const { return handle_; }

 private:
  baton_shard* handle_;
};

#if __has_include(<memory_resource>) && defined(__cpp_exceptions)
// Scratch memory of a shard's heap for containers: a std::pmr::vector whose bytes can be sent as
// they are. Make one for each epoch, in OnAdopt: what it allocated ends with the epoch, and is not
// given back twice when containers outlive it. Throws std::bad_alloc if the heap has no room, and
// where the service has no heaps.
//
// Destroy containers in OnRelease: the next owner writes over their elements. None may outlive the
// Worker, and none survives its process: what a successor has to find belongs in memory of
// Heap::Allocate, addressed by offset.
class HeapResource final : public std::pmr::memory_resource {
 public:
  // `buffers`: what Worker::buffers returns.
  HeapResource(Shard shard, uint8_t* buffers)
      : shard_(shard.handle()), epoch_(shard.epoch()), buffers_(buffers) {}

  // Returns the buffer at an address inside what this has allocated, to be sent.
  Buffer BufferAt(const void* address, uint32_t length) const {
    Buffer buffer = {};
    buffer.offset = static_cast<uint64_t>(static_cast<const uint8_t*>(address) - buffers_);
    buffer.length = length;
    return buffer;
  }

 private:
  static constexpr size_t kLeastAlignment = 64;

  void* do_allocate(size_t bytes, size_t alignment) override {
    Buffer buffer = {};
    const bool owns = baton_shard_epoch(shard_) == epoch_;
    const auto wanted =
        static_cast<uint32_t>(alignment < kLeastAlignment ? kLeastAlignment : alignment);
    if (!owns ||
        baton_allocate_scratch(shard_, bytes == 0 ? 1 : bytes, wanted, &buffer) != BATON_OK) {
      throw std::bad_alloc();
    }
    return buffers_ + buffer.offset;
  }
  void do_deallocate(void* memory, size_t /*bytes*/, size_t /*alignment*/) override {
    if (baton_shard_epoch(shard_) != epoch_) return;
    const Buffer buffer = BufferAt(memory, 1);
    (void)baton_free(shard_, &buffer);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  baton_shard* shard_;
  uint64_t epoch_;
  uint8_t* buffers_;
};
#endif

// The application implements this class, and keeps the object alive as long as the Worker.
class Service {
 public:
  virtual ~Service() = default;
  virtual bool OnAdopt(Shard) { return true; }  // false: the shard is given back
  virtual void OnCompletion(Shard shard, const Completion& completion) = 0;
  virtual void OnRelease(Shard) {}
  virtual void OnLost(Shard) {}
  virtual void OnShutdown(const char* /*reason*/) {}
};

struct WorkerOptions {
  std::string socket = {};
  std::string service = {};
  std::string name = {};
  std::string version = {};
  uint32_t reads_state_version_min = 0;
  uint32_t reads_state_version_max = 0;
  uint32_t writes_state_version = 0;
  baton_commit_mode commit_mode = BATON_COMMIT_EACH_BATCH;
  int realtime_priority = 0;
  bool control_stream = true;
  uint32_t yield_microseconds = 100;
  bool take_over = false;
};

// A process's membership in a service.
class Worker {
 public:
  Worker() = default;
  Worker(Worker&&) = default;
  Worker& operator=(Worker&&) = default;
  ~Worker() { Detach(); }

  Status Attach(const WorkerOptions& options, Service* service) {
    baton_worker_options given = BATON_WORKER_OPTIONS_INIT;
    given.socket = options.socket.c_str();
    given.service = options.service.c_str();
    given.name = options.name.c_str();
    given.version = options.version.c_str();
    given.reads_state_version_min = options.reads_state_version_min;
    given.reads_state_version_max = options.reads_state_version_max;
    given.writes_state_version = options.writes_state_version;
    given.commit_mode = options.commit_mode;
    given.realtime_priority = options.realtime_priority;
    given.no_control_stream = !options.control_stream;
    given.yield_microseconds = options.yield_microseconds;
    given.take_over = options.take_over;
    const baton_service calls = {
        sizeof(baton_service), service, &OnAdopt, &OnCompletion, &OnRelease, &OnLost, &OnShutdown};
    baton_worker* worker = nullptr;
    const int code = baton_attach(&given, &calls, &worker);
    worker_.reset(worker);
    return Status::Of(code);
  }
  // OnRelease and OnLost, which are called meanwhile, may use the Worker, but not detach it.
  void Detach() {
    baton_detach(handle());
    (void)worker_.release();
    watched_.clear();
  }

  Status Ready() { return Status::Of(baton_ready(handle())); }
  Status TakeOver(const uint32_t* shards = nullptr, size_t shard_count = 0) {
    return Status::Of(baton_take_over(handle(), shards, shard_count));
  }
  Status Poll(int* delivered = nullptr) { return Status::Of(baton_poll(handle(), delivered)); }
  int event_fd() const { return baton_event_fd(handle()); }
  bool ArmEvent() { return baton_arm_event(handle()); }
  Status Wait(int timeout_ms) { return Status::Of(baton_wait(handle(), timeout_ms)); }
  Status Run() { return Status::Of(baton_run(handle())); }
  void Stop() { baton_stop(handle()); }
  void Wake() { baton_wake(handle()); }
  // The Worker keeps `callback` until Unwatch(fd) or Detach, and while it runs.
  Status Watch(int fd, std::function<void()> callback) {
    if (!callback) return {BATON_INVALID_ARGUMENT, "callback: it is empty"};
    auto watched = std::make_shared<Watched>();
    watched->callback = std::move(callback);
    const int code = baton_watch(handle(), fd, &OnReadable, watched.get());
    if (code == BATON_OK) watched_[fd] = std::move(watched);
    return Status::Of(code);
  }
  void Unwatch(int fd) {
    baton_unwatch(handle(), fd);
    watched_.erase(fd);
  }
  Status Listen(const char* host, uint16_t port, uint16_t* bound = nullptr) {
    return Status::Of(baton_listen(handle(), host, port, bound));
  }
  baton_capacity capacity() const {
    baton_capacity capacity = {};
    capacity.size = sizeof(capacity);
    baton_get_capacity(handle(), &capacity);
    return capacity;
  }
  uint8_t* buffers(size_t* length) const { return baton_buffers(handle(), length); }
  Status GrantRemoteAccess(uint64_t offset, uint64_t length, uint32_t access,
                           baton_remote_grant* grant) {
    grant->size = sizeof(*grant);
    return Status::Of(baton_grant(handle(), offset, length, access, grant));
  }
  Status RevokeGrant(uint32_t id) { return Status::Of(baton_revoke_grant(handle(), id)); }
  void ReportHealth(bool healthy, const char* detail) {
    baton_report_health(handle(), healthy, detail);
  }
  uint64_t id() const { return baton_worker_id(handle()); }

  baton_worker* handle() const { return worker_.get(); }

 private:
  struct Watched : std::enable_shared_from_this<Watched> {
    std::function<void()> callback;
  };

  static Service& Of(void* context) { return *static_cast<Service*>(context); }
  static int OnAdopt(void* context, baton_shard* shard) noexcept {
    return Of(context).OnAdopt(shard) ? 0 : 1;
  }
  static void OnCompletion(void* context, baton_shard* shard,
                           const baton_completion* completion) noexcept {
    Of(context).OnCompletion(shard, *completion);
  }
  static void OnRelease(void* context, baton_shard* shard) noexcept {
    Of(context).OnRelease(shard);
  }
  static void OnLost(void* context, baton_shard* shard) noexcept { Of(context).OnLost(shard); }
  static void OnShutdown(void* context, const char* reason) noexcept {
    Of(context).OnShutdown(reason);
  }
  // The callback may unwatch its descriptor.
  static void OnReadable(void* context) noexcept {
    const std::shared_ptr<Watched> kept = static_cast<Watched*>(context)->shared_from_this();
    kept->callback();
  }

  struct Detacher {
    void operator()(baton_worker* worker) const { baton_detach(worker); }
  };
  std::map<int, std::shared_ptr<Watched>> watched_;  // by descriptor
  std::unique_ptr<baton_worker, Detacher> worker_;   // detached first
};

}  // namespace v0
}  // namespace baton

#endif  // BATON_BATON_HPP_
