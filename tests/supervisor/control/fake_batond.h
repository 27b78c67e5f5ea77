// Stands in for the batond that has started a control: answers what that asks of it.
#ifndef TESTS_SUPERVISOR_CONTROL_FAKE_BATOND_H_
#define TESTS_SUPERVISOR_CONTROL_FAKE_BATOND_H_

#include <memory>
#include <mutex>
#include <thread>

#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/control.pb.h"

namespace baton {

class FakeBatond {
 public:
  FakeBatond();
  ~FakeBatond() { Leave(); }
  FakeBatond(const FakeBatond&) = delete;
  FakeBatond& operator=(const FakeBatond&) = delete;

  // Control's end of a new socket; the one before is closed.
  FileDescriptor Connect();
  // What every request is answered with but one for a file, which it opens.
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

}  // namespace baton

#endif  // TESTS_SUPERVISOR_CONTROL_FAKE_BATOND_H_
