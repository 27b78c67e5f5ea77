#ifndef LIB_NIC_CALL_SOCKET_H_
#define LIB_NIC_CALL_SOCKET_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/control_format.h"

namespace baton::nic {

// A client's file on a NIC, and the calls of this process to it (control.md). The file's objects
// end when the last copy of file() is closed, in any process.
//
// Every call waits for the reply. The NIC is lost() once it has closed the connection, or, if it is
// another process, has not replied within four seconds. Every call fails from then on. All other
// errors are the NIC's answers. Thread-compatible.
class CallSocket {
 public:
  struct Answer {
    uint32_t value = 0;
    uint32_t more = 0;
    FileDescriptor descriptor;  // that came with the reply
    std::optional<control::Event> event;
  };

  // Opens a file for objects or for ids. While a call waits, it calls `turn`, which makes a NIC of
  // the same thread serve its sockets, and waits without a limit. Empty: the NIC is another
  // process.
  static absl::StatusOr<CallSocket> Open(FileDescriptor socket, control::Op op,
                                         std::function<void()> turn);

  // Goes on with what another object of this process has after AfterFork(): its file(), its
  // calls(), and the tag of its last call. Only one of them makes calls from now on.
  static CallSocket Inherit(FileDescriptor file, FileDescriptor calls, uint32_t last_tag);
  uint32_t last_tag() const { return last_tag_; }

  // A forked process calls it first, and gets a call socket of its own.
  absl::Status AfterFork();
  // A forked process that makes no calls calls this instead. Every call then fails.
  void GiveUp() { forked_ = given_up_ = true; }
  // A forked process that follows the opener, which is dead, calls both: it is the opener from now
  // on. Nothing is executed any more that the former one has sent. A process that it forks between
  // the two can follow it in the same way.
  absl::Status BeginTakeOver();
  absl::Status TakeOver();
  bool forked() const { return forked_; }
  bool lost() const { return lost_; }
  int file() const { return file_.get(); }
  int calls() const { return calls_.get(); }

  template <typename Message>
  absl::StatusOr<Answer> Call(Message message, int passed = -1) {
    message.header = {static_cast<uint16_t>(Message::kOp), sizeof(Message), ++last_tag_};
    return Exchange({reinterpret_cast<const uint8_t*>(&message), sizeof(message)}, passed);
  }

 private:
  CallSocket(FileDescriptor file, std::function<void()> turn)
      : file_(std::move(file)), turn_(std::move(turn)) {}

  absl::Status AddSocket();
  absl::StatusOr<Answer> Exchange(absl::Span<const uint8_t> message, int passed);
  absl::StatusOr<Answer> Wait(int socket, uint32_t tag);
  absl::Status AwaitReadable(int socket, uint64_t deadline_ns) const;
  absl::Status Lost(absl::string_view why);

  FileDescriptor file_;
  std::function<void()> turn_;
  FileDescriptor calls_;
  uint32_t number_ = 0;            // the NIC's, of calls_
  std::vector<uint32_t> formers_;  // numbers of dead processes' sockets, until TakeOver()
  uint32_t last_tag_ = 0;
  bool forked_ = false;
  bool given_up_ = false;
  bool lost_ = false;
};

}  // namespace baton::nic

#endif  // LIB_NIC_CALL_SOCKET_H_
