// This file has the NIC in software, and the loop of a process or thread that is one.
#ifndef LIB_NIC_NIC_H_
#define LIB_NIC_NIC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/closer.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/connections.h"
#include "lib/nic/context.h"
#include "lib/nic/control_socket.h"
#include "lib/nic/host.h"
#include "lib/nic/objects.h"

namespace baton::nic {

// A NIC in software: it executes what its clients queue in memory that they share with it
// (soft_nic.md). The NIC copies and checks what a client writes there or to its sockets
// (control.md) before it uses it. A client that wants to can still slow or end the NIC:
// soft_nic.md, "Open", has the ways.
//
// The NIC has no thread, except one that closes what clients of other processes passed (Closer).
// Its user calls Progress() in every turn of a loop that polls. A loop that sleeps does this:
//   while (nic->Progress() || !nic->PrepareToWait()) {}
//   wait until nic->event_fd() is readable;
// Thread-compatible.
class Nic {
 public:
  // The NIC calls `complain` (may be empty) when a client does what no correct client does.
  // `own_addresses`: its clients are of this process, and register memory by its address.
  static absl::StatusOr<std::unique_ptr<Nic>> Make(const verbs::soft::SoftDeviceOptions& options,
                                                   Complain complain, bool own_addresses = false);

  // Serves a client at the other end of `socket` (SOCK_SEQPACKET). kResourceExhausted: the NIC has
  // kMaxSockets.
  absl::Status Add(FileDescriptor socket);

  // One turn: takes what was rung, executes some of it, and answers some messages. Returns false if
  // there was nothing to do.
  bool Progress();

  // The parts of Progress(), for a NIC that has its clients in its own thread. TakeRings() takes
  // what was rung. Execute() does that and executes some of it. Serve() answers some messages. Each
  // returns false if there was nothing to do.
  bool TakeRings();
  bool Execute();
  bool Serve();
  // Readable when Execute() has something to do beside what is rung.
  int engine_fd() const { return loop_->event_fd(); }
  // Grows with each event that a file has for its client.
  uint64_t events() const { return objects_.events; }

  // Returns false if there is something to do now. Returns true if event_fd() becomes readable when
  // there is something to do. The next Progress() ends the wait.
  bool PrepareToWait();
  int event_fd() const { return epoll_.get(); }

  const verbs::soft::SoftDeviceOptions& options() const { return options_; }
  size_t contexts() const { return contexts_.size(); }
  bool has_clients() const { return !sockets_.empty(); }

 private:
  struct Socket {
    FileDescriptor fd;
    Owner owner = 0;  // 0: the client has not opened a file yet
    bool file = false;
  };

  Nic(const verbs::soft::SoftDeviceOptions& options, FileDescriptor epoll,
      std::unique_ptr<verbs::soft::EventLoop> loop, Complain complain, bool own_addresses);

  void TellLoss();
  absl::StatusOr<uint64_t> Watch(FileDescriptor socket, Owner owner);
  void ComplainOf(Owner file, const std::string& what);
  void ServeSocket(uint64_t id);
  bool Answer(uint64_t id, Received received, ControlMessage* message);
  static void Empty(int eventfd);
  void Discard(FileDescriptor descriptor);
  bool Open(uint64_t id, const control::RequestHeader& header, const ControlMessage& message);
  void AddSocket(const Socket& file, const control::RequestHeader& header,
                 const ControlMessage& message);
  absl::StatusOr<uint32_t> EndSocket(const Socket& caller, const ControlMessage& message);
  bool Execute(uint64_t id, const control::RequestHeader& header, ControlMessage* message);
  void Close(uint64_t id);

  const verbs::soft::SoftDeviceOptions options_;
  const FileDescriptor epoll_;
  const std::unique_ptr<verbs::soft::EventLoop> loop_;
  Objects objects_;
  const Complain complain_;
  const Host host_;
  Closer closer_;
  uint64_t last_id_;
  uint64_t turns_ = 0;
  uint64_t served_ns_ = 0;  // when sockets were served last
  bool sleeping_ = false;   // the registers say so
  bool loss_told_ = false;
  absl::flat_hash_map<uint64_t, Socket> sockets_;
  absl::flat_hash_map<Owner, std::unique_ptr<Context>> contexts_;
  absl::flat_hash_map<Owner, std::unique_ptr<Connections>> connections_;
};

// Turns `nic` until its last client has closed its last socket. While there is nothing to do it
// looks at the doorbells for half a microsecond, yields for `yield_microseconds`, and then sleeps
// until a bell or a socket wakes it. Returns an error if it cannot wait.
absl::Status Serve(Nic* nic, uint32_t yield_microseconds);

}  // namespace baton::nic

#endif  // LIB_NIC_NIC_H_
