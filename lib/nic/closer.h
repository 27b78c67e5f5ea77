#ifndef LIB_NIC_CLOSER_H_
#define LIB_NIC_CLOSER_H_

#include <memory>

#include "lib/base/file_descriptor.h"

namespace baton::nic {

// Closes descriptors that clients have passed or shared, in a thread that does nothing else. A
// close can wait for a file system or a peer that does not answer. Closing a socket also closes the
// descriptors that are in transit through it.
//
// The thread starts with the first descriptor. The destructor does not wait for it, because it may
// wait for ever. It holds no more than the process has descriptors. Thread-compatible.
class Closer {
 public:
  Closer();
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;
  ~Closer();

  // Never waits, unless no thread can be started. Then it closes `descriptor` itself.
  void Close(FileDescriptor descriptor);

 private:
  struct Work;
  static void Run(const std::shared_ptr<Work>& work);

  const std::shared_ptr<Work> work_;
  bool started_ = false;
};

}  // namespace baton::nic

#endif  // LIB_NIC_CLOSER_H_
