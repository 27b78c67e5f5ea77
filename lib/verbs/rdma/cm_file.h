// A client of the kernel's connection manager: /dev/infiniband/rdma_cm, without librdmacm.
//
// The kernel keeps ids. An id is a listener, a connection, or a request that nobody has answered. A
// file holds ids, each of which has a number that is unique on the machine. Ids live until they are
// destroyed, or until the last descriptor of their file is closed, which disconnects their peers.
// So another process that holds a descriptor keeps them, and Migrate transfers them to the file of
// a successor. librdmacm cannot do that: it keeps the state of an id in its heap, and passes
// pointers into it to the kernel.
//
// This client has no state but the descriptor. cm.md lists what the kernel does, and by which tests
// that is shown.
//
// Only the process that opened a file can use it, and only with the credentials that it had then:
// after fork(), execve() and a change of credentials every call fails with EACCES. Another process
// can hold the descriptor, and can pass it to Migrate.
//
// Errors are of the form "COMMAND of rdma_cm's id N: strerror (errno E); what to do". CmErrno()
// returns E. Calls are one system call each. They do not wait for peers, and do not allocate memory
// unless they fail. Destroy waits until the kernel's work on the id has ended.
//
// Thread-compatible.
#ifndef LIB_VERBS_RDMA_CM_FILE_H_
#define LIB_VERBS_RDMA_CM_FILE_H_

#include <infiniband/sa.h>
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/rdma/cm_event_number.h"
#include "lib/verbs/socket_address.h"

namespace baton::verbs::rdma {

inline constexpr size_t kCmPrivateDataBytes = 256;

// One side of a connection tells the other this. The layout is the kernel's (rdma_ucm_conn_param).
struct CmParameters {
  uint32_t qp_num = 0;
  uint32_t q_key = 0;
  // A request can carry 56 bytes, a response 196, a rejection 148. What a peer sends is padded with
  // zeros to these lengths, and private_data_length includes the padding.
  uint8_t private_data[kCmPrivateDataBytes] = {};
  uint8_t private_data_length = 0;
  uint8_t srq = 0;
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t flow_control = 0;
  uint8_t retry_count = 0;
  uint8_t rnr_retry_count = 0;
  uint8_t valid = 0;  // set by Connect and Accept
};

// An event. The layout is the kernel's (rdma_ucm_event_resp).
struct CmEventSlot {
  CmEventNumber number() const { return CmEventNumber(event); }

  uint64_t uid = 0;  // given to Create, or to Accept. A request carries its listener's.
  uint32_t id = 0;   // a request's own new id
  uint32_t event = 0;
  int32_t status = 0;       // 0, a negative errno, or the reason of a rejection
  CmParameters connection;  // the peer's
  uint8_t datagram[32] = {};
  uint32_t reserved = 0;
  uint32_t ece_vendor = 0;
  uint32_t ece_options = 0;
};

// Everything but the addresses is 0 while the id is not bound to a device.
struct CmAddresses {
  static constexpr uint32_t kNoIndex = ~uint32_t{0};

  uint64_t node_guid = 0;     // big-endian, as ibv_get_device_guid returns it
  uint32_t device_index = 0;  // of ibv_get_device_index; kNoIndex: the kernel does not say
  uint16_t p_key = 0;         // big-endian
  uint8_t port = 0;
  SocketAddress local, peer;  // a listener's peer has the family of its own address, and port 0
};

struct CmGids {
  ibv_gid local = {}, peer = {};
};

struct CmQueuePairAttributes {
  ibv_qp_attr attributes = {};
  int mask = 0;  // which of them to pass to ibv_modify_qp
};

enum class CmRejection : uint8_t {  // reasons that the kernel accepts from user space
  kConsumerDefined = 28,
  kVendorOptionNotSupported = 35,
};

enum class CmAnswer : uint8_t {
  kNone,      // a request without an answer, or a connection that is over
  kAccepted,  // accepted, without the peer's last word. The call has made it established.
  kEstablished,
};

// Returns the errno of a status that CmFile returned, or 0 if it has none.
int CmErrno(const absl::Status& status);

class CmFile {
 public:
  // kNotFound: the kernel's module rdma_ucm is not loaded. kUnimplemented: its ABI is another one.
  static absl::StatusOr<CmFile> Open();
  // Takes a file that this process has opened, with O_NONBLOCK.
  explicit CmFile(FileDescriptor file) : file_(std::move(file)) {}

  // Readable while there are events. Migrate does not wake a process that polls already, and an
  // epoll instance that has the file is told nothing: call NextEvent after Migrate until it returns
  // false.
  int fd() const { return file_.get(); }
  // The file is not closed. For a forked process that has closed descriptors it did not need.
  void Leave() { (void)file_.Release(); }

  // Makes an id of a reliable connection. `uid` comes back in events. It must not be 0: the kernel
  // drops all events of an id whose uid is 0. Use an index, not a pointer: the uid outlives the
  // process.
  absl::StatusOr<uint32_t> Create(uint64_t uid);
  // Disconnects and removes an id. Removing a listener also removes the requests whose events were
  // not read. Returns how many events the kernel delivered for it. Do not destroy a request's id
  // before its event was read: that event would name an id that does not exist.
  absl::StatusOr<uint32_t> Destroy(uint32_t id);

  // Port 0: the kernel chooses one, and QueryAddresses returns it.
  absl::Status Bind(uint32_t id, const SocketAddress& local);
  // `backlog`: the most requests whose events were not read; 0: the kernel's limit
  // (/proc/sys/net/rdma_ucm/max_backlog). The kernel drops requests beyond that silently.
  absl::Status Listen(uint32_t id, uint32_t backlog);

  // An event ends each: kAddressResolved or kAddressError, and kRouteResolved or kRouteError.
  // `local` may be null: the routing table then chooses the address.
  absl::Status ResolveAddress(uint32_t id, const SocketAddress* local, const SocketAddress& peer,
                              uint32_t timeout_ms);
  absl::Status ResolveRoute(uint32_t id, uint32_t timeout_ms);

  absl::StatusOr<CmAddresses> QueryAddresses(uint32_t id) const;
  absl::StatusOr<CmGids> QueryGids(uint32_t id) const;
  // Copies at most `room` paths and returns how many: none before ResolveRoute, one after it, two
  // with an alternate path.
  absl::StatusOr<int> QueryPaths(uint32_t id, ibv_path_data* paths, int room) const;

  // Ends with kConnectResponse, kRejected, kUnreachable or kConnectError. After kConnectResponse
  // the caller makes the queue pair ready, and completes the connection with Establish.
  absl::Status Connect(uint32_t id, CmParameters parameters);
  absl::Status Establish(uint32_t id);
  // Accept answers a request whose queue pair is ready. Ends with kEstablished, and events carry
  // `uid` from then on; it must not be 0. Never call Accept again or Reject before the peer's last
  // word: both end the connection, and Destroy then blocks for up to 69 s, in which the process
  // cannot be killed. Destroy ends such a connection at once. NotifyEstablished tells whether
  // Accept was called.
  absl::Status Accept(uint32_t id, uint64_t uid, CmParameters parameters);
  absl::Status Reject(uint32_t id, CmRejection reason, std::string_view private_data);
  // The caller also answers kDisconnected with it. Without that answer the peer waits longer for
  // its time-wait.
  absl::Status Disconnect(uint32_t id);

  // Returns the arguments of ibv_modify_qp that bring the id's queue pair to `state`: INIT, RTR or
  // RTS. Another process may have the queue pair. EINVAL: the connection is not that far, or over.
  // Before Connect the kernel returns what INIT needs, whatever `state` is.
  absl::StatusOr<CmQueuePairAttributes> QueuePairAttributes(uint32_t id, ibv_qp_state state) const;

  // Reads the next event into `slot`; false: there is none. The kernel fills the slot before it
  // removes the event from its queue. So a slot in memory that outlives the process keeps a
  // request's private data, which the kernel does not keep.
  absl::StatusOr<bool> NextEvent(CmEventSlot* slot);

  // Asks how far an accepted connection is, for a successor that does not know what was accepted.
  // It changes kAccepted to established, so it is no query for a connection that may still fail.
  absl::StatusOr<CmAnswer> NotifyEstablished(uint32_t id);

  absl::Status SetTypeOfService(uint32_t id, uint8_t value);
  absl::Status SetReuseAddress(uint32_t id, bool reuse);
  absl::Status SetAddressFamilyOnly(uint32_t id, bool only);
  absl::Status SetAckTimeout(uint32_t id, uint8_t exponent);  // 4.096 µs · 2^exponent

  // Migrates the id from `other_file`, with its events that were not read. The caller needs only
  // that descriptor. Its opener may be alive or dead. The events of requests migrate with their
  // listener, so migrate listeners first, and the ids of their requests after them. Returns how
  // many events the kernel has delivered for it. ENOENT: no file has the number. EINVAL: another
  // file has it.
  absl::StatusOr<uint32_t> Migrate(int other_file, uint32_t id);

 private:
  template <typename Body>
  absl::Status Give(uint32_t command, const Body& body) const;
  template <typename Answer, typename Body>
  absl::Status Ask(uint32_t command, const Body& body, Answer* answer) const;
  template <typename Answer>
  absl::Status Query(uint32_t id, uint32_t option, Answer* answer) const;
  template <typename Value>
  absl::Status SetOption(uint32_t id, uint32_t name, Value value);

  FileDescriptor file_;
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_CM_FILE_H_
