// The files of the C interface share this: errors, structures of other releases, handles, and the
// application behind a worker.
#ifndef WORKER_KIT_C_LAYER_H_
#define WORKER_KIT_C_LAYER_H_

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/file_sender.h"
#include "worker/kit/include/baton/baton.h"
#include "worker/kit/structures.h"
#include "worker/worker.h"

namespace baton::kit {

// Keeps the message of an error for baton_error(). Returns the code.
int Report(const absl::Status& status);
int Wrong(const char* field, const char* why);
const char* LastError();  // of this thread

// Gives the caller what a call returned. `to` may be null.
template <typename T>
int Report(const absl::StatusOr<T>& result, T* to) {
  if (result.ok() && to != nullptr) *to = *result;
  return Report(result.status());
}

// Gives the caller an object that it owns.
template <typename T, typename H>
int Hand(std::unique_ptr<T> object, H** handle) {
  *handle = reinterpret_cast<H*>(object.release());
  return BATON_OK;
}

template <typename T>
int CheckSize(const T* given, const char* field) {
  const char* const why = WhyUnusable(given);
  return why == nullptr ? BATON_OK : Wrong(field, why);
}

inline absl::Span<const uint8_t> BytesOf(const void* data, size_t length) {
  return {static_cast<const uint8_t*>(data), length};
}
inline const uint8_t* Give(absl::Span<const uint8_t> bytes, size_t* length) {
  *length = bytes.size();
  return bytes.data();
}

// Handles of shards and connections are the objects themselves.
inline Shard* Of(baton_shard* shard) { return reinterpret_cast<Shard*>(shard); }
inline const Shard* Of(const baton_shard* shard) { return reinterpret_cast<const Shard*>(shard); }
inline Connection* Of(baton_connection* connection) {
  return reinterpret_cast<Connection*>(connection);
}
inline const Connection* Of(const baton_connection* connection) {
  return reinterpret_cast<const Connection*>(connection);
}
inline baton_shard* Handle(Shard* shard) { return reinterpret_cast<baton_shard*>(shard); }
inline baton_connection* Handle(Connection* connection) {
  return reinterpret_cast<baton_connection*>(connection);
}

inline baton_buffer ToC(const Buffer& buffer) { return {buffer.offset, buffer.length}; }
inline Buffer FromC(const baton_buffer& buffer) { return {buffer.offset, buffer.length}; }
baton_completion ToC(const Completion& done);
Completion FromC(const baton_completion& given);

// The buffers of one request, as the C++ interface takes them.
class Buffers {
 public:
  Buffers(const baton_buffer* buffers, uint32_t count) : count_(count) {
    for (uint32_t i = 0; i < std::min(count, kMost); ++i) buffers_[i] = FromC(buffers[i]);
  }
  bool fit() const { return count_ <= kMost; }
  absl::Span<const Buffer> span() const { return {buffers_, count_}; }

 private:
  static constexpr uint32_t kMost = 4;
  Buffer buffers_[kMost];
  const uint32_t count_;
};
inline constexpr char kTooMany[] = "more than 4";

// kFailedPrecondition: the service has no heaps.
absl::Status CheckHeap(Shard& shard);

// A worker's reads of files, and how its transfers use them.
struct Files {
  std::unique_ptr<FileReads> reads;  // null: none
  FileSender::Options pipeline;
};

// Passes the worker's calls on to the application.
class Application final : public Service {
 public:
  explicit Application(const baton_service& service) : service_(CopyOf(service)) {}

  absl::Status OnAdopt(Shard& shard) override;
  void OnCompletion(Shard& shard, const Completion& done) override;
  void OnRelease(Shard& shard) override;
  void OnLost(Shard& shard) override;
  void OnShutdown(std::string_view reason) override;

  Files files;

 private:
  void FinishReads(Shard& shard);

  const baton_service service_;
};

// A baton_worker is one of these.
struct Membership {
  explicit Membership(const baton_service& service) : application(service), process(getpid()) {}
  // A child that the process forked has not the queues of its reads.
  ~Membership() {
    if (getpid() != process) (void)application.files.reads.release();
  }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  Application application;
  const pid_t process;
  std::unique_ptr<Worker> worker;  // destroyed first
};

inline Membership* Of(baton_worker* worker) { return reinterpret_cast<Membership*>(worker); }
inline Worker& WorkerOf(baton_worker* worker) { return *Of(worker)->worker; }
inline const Worker& WorkerOf(const baton_worker* worker) {
  return *reinterpret_cast<const Membership*>(worker)->worker;
}

}  // namespace baton::kit

#endif  // WORKER_KIT_C_LAYER_H_
