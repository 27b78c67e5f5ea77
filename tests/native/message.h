// What peers and the services under test say to each other, and the pages that they share.
#ifndef TESTS_NATIVE_MESSAGE_H_
#define TESTS_NATIVE_MESSAGE_H_

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <new>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/file_descriptor.h"

namespace baton::native {

// The peer numbers its messages on each connection from 0. The service counts what it has processed
// on it, and answers each message with its number and that count: they differ when it did not get
// all, or one twice.
struct Message {
  uint64_t number = 0;
  uint64_t count = 0;
  uint64_t connection = 0;  // the peer's name of it
  uint64_t sum = 0;
  uint64_t padding[4] = {};
};
static_assert(sizeof(Message) == 64);

inline uint64_t SumOf(const Message& message) {
  return (message.number * 0x9e37'79b9'7f4a'7c15 ^ message.count * 0xc2b2'ae3d'27d4'eb4f) +
         message.connection * 0x1656'67b1'9e37'79f9 + 1;
}

// What the peer of the failover bar asks. A reply is its request with the rest filled in. Times are
// CLOCK_MONOTONIC's, in ns.
struct FailoverMessage {
  uint64_t sequence = 0;
  uint64_t server = 0;    // pid of who answers
  uint64_t began_ns = 0;  // it had its shard, or the first request to connect
  uint64_t received_ns = 0;
  uint64_t padding[4] = {};
};
static_assert(sizeof(FailoverMessage) == 64);

// Receives that are posted for a connection, which has one message under way.
inline constexpr uint32_t kFailoverReceives = 2;

inline uint64_t FailoverClock() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// An object that processes share: made before they are forked, or given on by its descriptor.
template <typename Object>
class SharedPage {
 public:
  SharedPage() : file_(memfd_create("shared page", /*flags=*/0)) {
    BATON_CHECK(file_ && ftruncate(file_.get(), sizeof(Object)) == 0);
    Map();
    new (object_) Object;
  }
  // Another process's.
  explicit SharedPage(FileDescriptor file) : file_(std::move(file)) { Map(); }
  ~SharedPage() { munmap(object_, sizeof(Object)); }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  int fd() const { return file_.get(); }
  Object* get() const { return object_; }
  Object* operator->() const { return object_; }

 private:
  void Map() {
    void* const page =
        mmap(nullptr, sizeof(Object), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    BATON_CHECK(page != MAP_FAILED);
    object_ = static_cast<Object*>(page);
  }

  FileDescriptor file_;
  Object* object_;
};

}  // namespace baton::native

#endif  // TESTS_NATIVE_MESSAGE_H_
