#ifndef LIB_NIC_CONNECTIONS_H_
#define LIB_NIC_CONNECTIONS_H_

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/call.h"
#include "lib/nic/connection.h"
#include "lib/nic/control_format.h"
#include "lib/nic/host.h"
#include "lib/nic/listener.h"

namespace baton::nic {

// The connection ids and listeners of one client's file. They end with it.
//
// An id can connect a queue pair of any file. `baton-driver` has the ids and chooses the queue
// pairs. A native worker posts to queue pairs and has no id.
class Connections final : public ClientFile, public verbs::soft::ConnectionCore {
 public:
  // `host` outlives it.
  explicit Connections(const Host* host);
  ~Connections() override;

  absl::StatusOr<uint32_t> Execute(Call* call) override;

 private:
  using Value = absl::StatusOr<uint32_t>;
  using Id = std::unique_ptr<verbs::soft::SoftConnection>;

  Value Listen(const control::Listen& message, Call* call);
  Value Connect(const control::Connect& message, Call* call);
  absl::Status Proceed(const control::Proceed& message, Call* call);
  absl::Status Accept(const control::Accept& message, Call* call);
  absl::Status Reject(const control::Reject& message, Call* call);
  absl::Status Disconnect(const control::Disconnect& message, Call* call);
  Value NextEvent(const control::NextEvent& message, Call* call);
  Value NextId(const control::NextId& message, Call* call);
  absl::Status AddChannel(const control::Channel& message, Call* call);
  absl::Status Destroy(const control::Destroy& message, Call* call);

  absl::StatusOr<verbs::soft::SoftConnection*> FindId(uint32_t number) const;
  absl::StatusOr<verbs::soft::WireQueuePair*> FindQueuePair(uint32_t number) const;
  uint32_t NumberOf(const verbs::soft::SoftConnection* id) const;

  // ConnectionCore
  void PushEvent(verbs::soft::ConnectionEvent event) override;
  void RouteKnown(verbs::soft::SoftConnection* id) override;
  void DropFirstEvent();
  void NoteGiven(const control::Event& event);
  void RejectRequestsOf(uint32_t listener);
  void Erase(uint32_t id);
  void Queue(const control::Event& event);
  void Fill(const verbs::soft::SoftConnection& id, control::Event* event) const;

  const Host* const host_;
  uint32_t last_number_ = 0;
  absl::btree_map<uint32_t, Id> ids_;
  absl::flat_hash_map<const verbs::soft::SoftConnection*, uint32_t> numbers_;  // of ids
  absl::btree_map<uint32_t, std::unique_ptr<verbs::soft::SoftListener>> listeners_;
  std::deque<control::Event> events_;  // bounded: an id has at most three, a listener its backlog
  bool given_ = false;                 // the first of them, which may not be handled yet
  FileDescriptor channel_;
};

}  // namespace baton::nic

#endif  // LIB_NIC_CONNECTIONS_H_
