// Closes descriptors whose last close may wait for a file system or a peer that does not answer:
// those that other processes pass.
#ifndef LIB_BASE_CLOSER_H_
#define LIB_BASE_CLOSER_H_

#include <memory>

#include "lib/base/file_descriptor.h"

namespace baton {

// Closes descriptors in a thread that does nothing else. Closing a socket also closes the
// descriptors that are in transit through it.
//
// The thread starts with the first descriptor. The destructor does not wait for it, because it may
// wait for ever. It holds no more than the process has descriptors. Thread-safe.
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
};

// Ends a connection of a UNIX stream socket, for all of its descriptors, and closes this one. What
// the other side had sent and nobody has read is left to one Closer of the process. Thread-safe.
void CloseConnection(FileDescriptor socket);

}  // namespace baton

#endif  // LIB_BASE_CLOSER_H_
