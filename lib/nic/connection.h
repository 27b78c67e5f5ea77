// One connection: the connection manager's handshake and the queue pair's frames, on one TCP socket
// and, where the peer is a NIC of the same machine, through a memory.
#ifndef LIB_NIC_CONNECTION_H_
#define LIB_NIC_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lib/nic/event_loop.h"
#include "lib/nic/frame_stream.h"
#include "lib/nic/rendezvous.h"
#include "lib/nic/soft_options.h"
#include "lib/nic/wire_queue_pair.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

class SoftConnection;
class SoftListener;

// See CmEvent.
struct ConnectionEvent {
  CmEventType type = CmEventType::kConnectRequest;
  SoftListener* listener = nullptr;
  std::unique_ptr<SoftConnection> new_id;
  SoftConnection* id = nullptr;
  std::string private_data;
  absl::Status status;
};

// The state that the connections and listeners of one user share.
class ConnectionCore {
 public:
  // Both outlive it.
  ConnectionCore(const SoftDeviceOptions* device_options, EventLoop* device_loop);
  virtual ~ConnectionCore();
  ConnectionCore(const ConnectionCore&) = delete;
  ConnectionCore& operator=(const ConnectionCore&) = delete;

  virtual void PushEvent(ConnectionEvent event) = 0;
  // Called when the local address of a connecting connection is known. If AskRoute was called, the
  // connection waits for Proceed.
  virtual void RouteKnown(SoftConnection* id) = 0;

  const SoftDeviceOptions& options;
  EventLoop* const loop;
  uint64_t connections = 0;                     // ordinal of the next one, for the fault plan
  uint32_t memory_wires = 0;                    // connections that have memory, or are about to
  std::unique_ptr<nic::Rendezvous> rendezvous;  // made for the first offer
  // Takes a connection out of half_open. Returns null if it is not there.
  std::unique_ptr<SoftConnection> TakeHalfOpen(const SoftConnection* connection);
  // Owns the connections of peers that have connected and not sent their request yet. The oldest
  // is the first.
  std::vector<std::unique_ptr<SoftConnection>> half_open;
};

class SoftConnection final : public Pollable,
                             private QueuePairLink,
                             private FrameEndpoint,
                             private nic::MemoryMaker,
                             private nic::MemoryRequest::User {
 public:
  explicit SoftConnection(ConnectionCore* core);
  ~SoftConnection() override;

  // The connecting side. If connecting cannot even start, an event reports it.
  absl::Status Connect(const Address& address, WireQueuePair* queue_pair,
                       const ConnectionParameters& parameters);
  // Makes the connection wait for Proceed when its route is known (ConnectionCore::RouteKnown).
  void AskRoute() { ask_route_ = true; }
  // Returns true for a peer's request that was not accepted, also if it was rejected or given up.
  bool is_unaccepted() const { return unaccepted_; }
  // Continues, or fails the connection if `may` is an error. kFailedPrecondition: the connection
  // does not wait.
  absl::Status Proceed(absl::Status may);
  // The accepting side: `socket` is connected, the request is still to come.
  absl::Status TakeSocket(FileDescriptor socket, SoftListener* listener);
  SoftListener* listener() const { return listener_; }
  uint64_t accepted_ns() const { return accepted_ns_; }  // EventLoop::now() of TakeSocket
  // Closes the connection, whose request has not come, for the sake of other peers.
  void MakeRoom();

  const Address& local_address() const { return local_; }
  const Address& peer_address() const { return peer_; }
  ReadDepths depths() const;
  absl::Status Accept(WireQueuePair* queue_pair, const ConnectionParameters& parameters);
  absl::Status Reject(std::string_view private_data);
  absl::Status Disconnect();

  void OnReady(uint32_t events) override;
  void OnTransmit() override;
  void OnHeat() override { stream_.Awake(); }
  bool OnPoll() override;
  bool OnCool() override;
  void EventTaken() { --events_queued_; }

 private:
  enum class Phase : uint8_t {
    kNew,
    kConnecting,    // TCP
    kAwaitRoute,    // the user decides whether its route will do
    kAwaitReply,    // request sent
    kAwaitRequest,  // accepted from TCP
    kRequested,     // the user decides
    kAwaitReady,    // reply sent
    kEstablished,
    kDisconnecting,  // disconnect request sent
    kClosed,
  };

  // The state of the memory that both sides share. kNever: the connection stays on TCP.
  enum class Memory : uint8_t { kMayOffer, kMayAsk, kOffered, kAsked, kShared, kNever };

  // QueuePairLink
  void Posted() override;
  void WantTransmit() override;
  void DropRequests() override { stream_.DropRequests(); }
  void ReleaseRequests() override;
  void KeepResponses() override { stream_.Keep(PayloadSource::kResponse); }
  uint64_t FirstUnwritten(uint64_t end) const override { return stream_.FirstUnwritten(end); }
  void Stall(uint64_t duration_us) override;
  bool stalled() const override { return stalled_; }
  void CutLink() override {
    cut_ = true;
    core_->loop->MarkDirty(this);
  }
  void QueuePairGone() override;

  // FrameEndpoint
  bool NextFrame(OutFrame* frame) override;
  int GatherPayload(const OutFrame& frame, uint32_t skip, iovec* iovecs, int max) override;
  bool OnFrame(const FrameHeader& header, const uint8_t* body) override;
  int PayloadTarget(uint32_t done, uint32_t length, iovec* iovecs, int max) override;
  bool OnFrameEnd() override;

  // nic::MemoryMaker, nic::MemoryRequest::User
  absl::StatusOr<FileDescriptor> MakeMemory() override;
  void OnMemory(absl::StatusOr<FileDescriptor> memfd) override;

  bool ReserveMemory();
  void ReleaseMemory();
  void CountFrame();
  void OfferMemory();
  bool OnMemoryOffer(const uint8_t* body);
  bool OnMemoryReady();
  bool OnMemoryRefused();
  absl::Status AskForMemory(const MemoryOffer& offer);
  absl::Status UseMemory(absl::StatusOr<FileDescriptor> memfd);
  void RefuseMemory();
  void LookAtMemory();
  bool ReadMemory();
  bool Survives(StreamState state);
  bool IsConnecting() const;  // it has asked, and has no answer yet

  bool OnManagementFrame(const FrameHeader& header, const uint8_t* body);
  bool OnRequest(const FrameHeader& header, const uint8_t* body);
  bool OnReply(const FrameHeader& header, const uint8_t* body);
  bool OnRejected(const FrameHeader& header, const uint8_t* body);
  bool OnDisconnectRequest();

  absl::Status StartConnecting(const Address& address);
  void FinishConnecting();
  void SendRequest();
  absl::Status CheckParameters(const ConnectionParameters& parameters, uint32_t limit,
                               absl::string_view call) const;
  absl::Status CheckRequested(absl::string_view call) const;
  WireQueuePair::Connection Negotiate(uint8_t retry_count);
  void SendHead(FrameType type, std::string_view private_data);
  void SendManagement(FrameType type);
  void TransmitNow();
  void UpdateInterest();
  void OnTimer();
  void StallOver();
  void Lose(absl::Status why);  // the link is gone
  void Close();                 // socket, timers, queue pair
  void Report(CmEventType type, absl::Status status, std::string private_data);

  ConnectionCore* const core_;
  FrameStream stream_;
  SoftListener* listener_ = nullptr;
  uint64_t accepted_ns_ = 0;
  WireQueuePair* queue_pair_ = nullptr;
  Phase phase_ = Phase::kNew;
  Address local_;
  Address peer_;
  std::string private_data_;       // of the request, until it is sent
  ConnectHead mine_ = {};          // what we offer
  ConnectHead theirs_ = {};        // what the peer offers
  uint64_t transmitted_turn_ = 0;  // turn of the loop at the latest write by Posted
  uint32_t interest_ = 0;          // EPOLL* bits watched; 0: not watched
  int events_queued_ = 0;          // events in the device's queue that name this id
  bool ask_route_ = false;
  bool unaccepted_ = false;
  bool disconnected_ = false;  // the last event that was reported is kDisconnected
  bool cut_ = false;
  bool stalled_ = false;
  Memory memory_ = Memory::kNever;
  bool peer_offered_ = false;  // memory
  uint32_t frames_ = 0;        // received ones, until memory is offered
  std::unique_ptr<nic::MemoryRequest> memory_request_;
  Timer timer_;  // of the handshake or the disconnect
  Timer stall_timer_;
};

}  // namespace baton::verbs::soft

#endif  // LIB_NIC_CONNECTION_H_
