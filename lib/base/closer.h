// Closes descriptors whose last close may wait for a file system or a peer that does not answer:
// those that other processes pass.
#ifndef LIB_BASE_CLOSER_H_
#define LIB_BASE_CLOSER_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <memory>
#include <utility>

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

// Closes a descriptor that another process passed, in one Closer of the process. Thread-safe.
void CloseLater(FileDescriptor descriptor);

// The same for a file whose close ends whatever other processes do, but may take long. It does not
// wait behind what CloseLater() closes, which could keep every descriptor of this process in use.
void CloseFileLater(FileDescriptor file);

// Owns a descriptor that another process passed, and leaves it to CloseLater().
class PassedDescriptor {
 public:
  PassedDescriptor() = default;
  explicit PassedDescriptor(FileDescriptor descriptor) : descriptor_(std::move(descriptor)) {}
  PassedDescriptor(PassedDescriptor&&) noexcept = default;
  PassedDescriptor& operator=(PassedDescriptor&& other) noexcept {
    if (this != &other) CloseLater(std::exchange(descriptor_, std::move(other.descriptor_)));
    return *this;
  }
  ~PassedDescriptor() {
    if (descriptor_) CloseLater(std::move(descriptor_));
  }

  int get() const { return descriptor_.get(); }
  FileDescriptor Release() { return std::move(descriptor_); }
  explicit operator bool() const { return static_cast<bool>(descriptor_); }

 private:
  FileDescriptor descriptor_;
};

// Does what ReceiveBytes() does, but takes one descriptor that comes with the bytes: no other is
// closed here, and none is closed by the kernel in this thread. `header` has no control buffer, or
// one for the credentials of the sender. EBADMSG: several came at once. They stay in the socket,
// and nothing is read any more. EMFILE: this process has no free descriptor. Nothing is read before
// it has one.
ssize_t ReceiveBytesAndOne(int socket, msghdr* header, PassedDescriptor* passed);

// Ends a connection of a UNIX stream socket, for all of its descriptors, and closes this one. What
// the other side had sent and nobody has read is left to one Closer of the process. Thread-safe.
void CloseConnection(FileDescriptor socket);

}  // namespace baton

#endif  // LIB_BASE_CLOSER_H_
