#ifndef LIB_NIC_LISTENER_H_
#define LIB_NIC_LISTENER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/connection.h"
#include "lib/nic/event_loop.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

// Accepts the TCP connections of peers at one address. When too many of them are half open, the one
// that has been silent longest is closed for the next. The listener pauses while none has been
// silent long enough, or while too many requests are unreported.
class SoftListener final : public Pollable {
 public:
  static absl::StatusOr<std::unique_ptr<SoftListener>> Create(ConnectionCore* core,
                                                              const Address& address, int backlog);
  SoftListener(ConnectionCore* core, FileDescriptor socket, int backlog);
  ~SoftListener() override;

  const Address& address() const { return address_; }
  void OnReady(uint32_t events) override;

  // Count the listener's requests in the event queue.
  void RequestQueued() { ++unreported_; }
  void RequestTaken() { --unreported_; }

 private:
  bool Crowded() const;
  bool AcceptOne();
  void Pause();
  void Continue();

  ConnectionCore* const core_;
  FileDescriptor socket_;
  const int backlog_;
  Address address_;
  int unreported_ = 0;
  Timer pause_timer_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_LISTENER_H_
