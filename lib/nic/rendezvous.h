// Passes the memory between two NICs of one machine from one to the other, over an abstract UNIX
// socket. The peer has learnt the socket's name and a token over TCP. A NIC of another user, or in
// another network namespace, gets no memory.
#ifndef LIB_NIC_RENDEZVOUS_H_
#define LIB_NIC_RENDEZVOUS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/event_loop.h"
#include "lib/nic/wire.h"

namespace baton::nic {

inline constexpr size_t kMaxMemoryOffers = 64;

// Makes memory for the peer that has come for it.
class MemoryMaker {
 public:
  virtual ~MemoryMaker() = default;
  virtual absl::StatusOr<FileDescriptor> MakeMemory() = 0;
};

// The side that offers. One serves all connections of a user.
class Rendezvous final : public verbs::soft::Pollable {
 public:
  // `loop` outlives it. Peers that connect and say nothing for `patience_ns` are dropped.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> Make(verbs::soft::EventLoop* loop,
                                                          uint64_t patience_ns);
  ~Rendezvous() override;

  // Returns what the peer has to know to get memory of `maker`. kResourceExhausted: there are
  // kMaxMemoryOffers. The maker withdraws its offer before it is destroyed.
  absl::StatusOr<verbs::soft::MemoryOffer> Offer(MemoryMaker* maker);
  void Withdraw(const MemoryMaker* maker);

  void OnReady(uint32_t events) override;

 private:
  // A peer that has connected.
  struct Guest final : public verbs::soft::Pollable {
    void OnReady(uint32_t) override { rendezvous->Serve(this); }

    Rendezvous* rendezvous = nullptr;
    FileDescriptor socket;
    verbs::soft::Timer timer;
  };

  Rendezvous(verbs::soft::EventLoop* loop, uint64_t patience_ns, FileDescriptor listener,
             const std::string& name);

  bool Admit();
  void Serve(Guest* guest);
  MemoryMaker* TakeOffer(absl::string_view token);
  void Dismiss(Guest* guest);

  verbs::soft::EventLoop* const loop_;
  const uint64_t patience_ns_;
  const FileDescriptor listener_;
  const std::string name_;
  absl::flat_hash_map<std::string, MemoryMaker*> offers_;  // by token
  std::vector<std::unique_ptr<Guest>> guests_;
};

// The side that was offered a memory, until it has it.
class MemoryRequest final : public verbs::soft::Pollable {
 public:
  class User {
   public:
    virtual ~User() = default;
    // Called once, at the end. The peer may have passed any file.
    virtual void OnMemory(absl::StatusOr<FileDescriptor> memfd) = 0;
  };

  // `loop` and `user` outlive the request. Fails if no socket of this machine has that name, or
  // it is another user's.
  static absl::StatusOr<std::unique_ptr<MemoryRequest>> Make(verbs::soft::EventLoop* loop,
                                                             const verbs::soft::MemoryOffer& offer,
                                                             User* user);
  MemoryRequest(verbs::soft::EventLoop* loop, FileDescriptor socket, User* user)
      : loop_(loop), socket_(std::move(socket)), user_(user) {}
  ~MemoryRequest() override { Cancel(); }

  // Ends the request without a call of the user.
  void Cancel();
  void OnReady(uint32_t events) override;

 private:
  verbs::soft::EventLoop* const loop_;
  FileDescriptor socket_;
  User* const user_;
};

}  // namespace baton::nic

#endif  // LIB_NIC_RENDEZVOUS_H_
