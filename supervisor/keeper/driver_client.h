// The interface between a keeper and its service's driver. The driver has the device, the queues,
// the arena and the engine, which moves shards between workers. The keeper gives it orders.
//
// The driver is a process of its own, which outlives its keeper (SocketDriverClient).
#ifndef SUPERVISOR_KEEPER_DRIVER_CLIENT_H_
#define SUPERVISOR_KEEPER_DRIVER_CLIENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/carried_status.h"
#include "lib/verbs/verbs.h"
#include "proto/baton/internal/driver.pb.h"
#include "supervisor/driver/engine/roster.h"

namespace baton::keeper {

using driver_process::Standing;
using driver_process::StateVersions;

// Called by DriverClient::DeliverNews.
class DriverListener {
 public:
  virtual ~DriverListener() = default;
  virtual void OnEvent(const internal::EngineEvent& event) = 0;
  // Called when the worker wrote what no correct worker writes. The listener must kill it.
  virtual void OnFenced(uint64_t worker_id) = 0;
  // Called when a thread of the worker ended with a lock of the worker held.
  virtual void OnThreadEnded(uint64_t worker_id) = 0;
  // Called when the device can no longer be used, or the driver cannot be asked any more.
  virtual void OnDeviceLost(const absl::Status& why) = 0;
};

// An order blocks its caller until the driver has executed it, usually for a turn of the engine.
// Thread-compatible: the management loop's thread.
class DriverClient {
 public:
  using Change = internal::ChangeWorker;
  using Workers = std::vector<internal::WorkerPlace>;

  virtual ~DriverClient() = default;

  virtual const arena::Arena& arena() const = 0;
  virtual std::string_view device_name() const = 0;
  const internal::Introduced& introduced() const { return introduced_; }
  // Returns why the driver cannot be asked any more; OK: it can. After an error, answers are empty,
  // and the keeper can only end.
  const absl::Status& lost() const { return lost_; }

  // Sets the only listener, which outlives this object.
  void SetListener(DriverListener* listener) { listener_ = listener; }
  // Hands what the driver has reported to the listener and to the callbacks below.
  void DeliverNews();
  // Readable when there is news for DeliverNews.
  virtual int news_fd() const = 0;

  void ShowLife() { (void)Give(&Order::mutable_show_life); }
  // Tells the driver that workers can attach.
  void NoteReady() { (void)Give(&Order::mutable_note_ready); }
  // Has the driver start the keeper of the program that is at the keeper's path now. The new keeper
  // follows this one, which gets SIGTERM once the new one gives its first order. kUnimplemented:
  // the driver is of an earlier release, and starts a keeper only when this one has ended.
  absl::Status StartNextKeeper(uint32_t probation_ms) {
    return StatusIn(Give(&Order::mutable_start_next_keeper,
                         [&](auto& start) { start.set_probation_ms(probation_ms); }));
  }

  // Has the driver replace the service's broker. kUnimplemented: it is of an earlier release.
  absl::Status TakeDriverCode(uint32_t probation_ms) {
    return StatusIn(Give(&Order::mutable_take_driver_code,
                         [&](auto& start) { start.set_probation_ms(probation_ms); }));
  }

  // ---- Workers. `wake`: the driver's end of a socket pair. A byte in either direction wakes the
  // other side. An eventfd would let a worker consume the driver's signals and make its writes
  // block.
  absl::Status AddWorker(const internal::AddWorker& worker, FileDescriptor wake);
  void ChangeWorker(uint32_t slot, uint64_t id, Change::Change change);
  // Called when the worker says that it has released its shards and writes no more.
  // kFailedPrecondition: it was fenced, and is not believed before its process is dead.
  // kUnavailable: the broker has not let go of it yet; ask again.
  absl::Status Detach(uint32_t slot, uint64_t id);
  // Gives the workers no shard any more, in one turn. Returns false, and changes nothing, if one of
  // them owns a shard or is about to.
  bool Retire(const Workers& workers);
  // If every shard is owned by one of `new_workers`, makes these the first in standing and
  // `old_workers` the last, in the same turn. Returns whether it did.
  bool Promote(const Workers& new_workers, const Workers& old_workers);

  // ---- Shards.
  internal::ShardsSeen LookAtShards();
  // Moves `shard` to the worker in `slot`. DeliverNews calls `done` when that worker has committed
  // for the first time, or with the reason why the shard did not move. Returns a number for
  // CancelHandOver, which changes nothing once `done` was called.
  using MoveDone = std::function<void(absl::Status, double blackout_us)>;
  uint64_t HandOver(uint32_t shard, uint32_t slot, MoveDone done);
  void CancelHandOver(uint64_t move, uint32_t shard, const std::string& why);
  // kFailedPrecondition: some state in the arena has a version that `reader` does not read.
  absl::Status CheckStoredState(const StateVersions& reader);

  // ---- Listeners, connections and grants. The driver checks what a worker asks for (Admission).
  // It does not execute a request again that has the number of the worker's last one, and gives the
  // same answer.
  struct Asker {
    uint64_t worker_id = 0;
    uint64_t number = 0;  // WorkerRequest's; 0: it is not sent again
  };
  absl::Status Listen(const verbs::Address& address);
  absl::StatusOr<internal::Listening> ListenFor(const Asker& asker, const verbs::Address& address,
                                                uint32_t max_listeners);
  void StopListening(const verbs::Address& address) {
    (void)Give(&Order::mutable_stop_listening, [&](auto& stop) {
      stop.set_host(address.host);
      stop.set_port(address.port);
    });
  }
  absl::StatusOr<internal::Connecting> ConnectFor(const Asker& asker,
                                                  const internal::ConnectRequest& request);
  // DeliverNews calls `done`, unless an error is returned.
  using Granted = std::function<void(absl::StatusOr<internal::Granted>)>;
  absl::Status GrantFor(const Asker& asker, const internal::GrantRequest& request, Granted done);
  using Revoked = std::function<void(absl::Status)>;
  void Revoke(const Asker& asker, const internal::RevokeRequest& request, Revoked done);
  // Returns the number of the held duplicate of `descriptor`, which stays the caller's.
  // kUnimplemented, from these four: the driver is of a release that holds none.
  absl::StatusOr<uint64_t> HoldDescriptorFor(const Asker& asker, uint64_t tag, int descriptor);
  absl::StatusOr<FileDescriptor> TakeDescriptor(uint64_t number);
  // The driver passes the descriptor back, so that this process closes it, in a thread for that:
  // the last close of a large deleted file takes long, and a native service's driver has one
  // thread.
  absl::Status DropDescriptor(uint64_t number);
  absl::StatusOr<internal::HeldNumbers> ListDescriptors(uint64_t tag);
  // Disconnects every connection, as if each peer had disconnected. Returns their number.
  uint64_t DisconnectAll(const std::string& why) {
    return Give(&Order::mutable_disconnect_all, [&](auto& all) { all.set_why(why); }).count();
  }

  // ---- Admission.
  void PutPolicyInForce(const v1::Policy& policy) {
    (void)Give(&Order::mutable_put_policy_in_force,
               [&](auto& put) { *put.mutable_policy() = policy; });
  }
  void CloseAdmission(const std::string& why) {
    (void)Give(&Order::mutable_close_admission, [&](auto& close) { close.set_why(why); });
  }
  void OpenAdmission() { (void)Give(&Order::mutable_open_admission); }
  struct Counted {
    uint64_t connections = 0;
    uint64_t refused = 0;  // since admission was closed
  };
  Counted CountConnections();
  internal::ServiceAccounts Account(const std::vector<uint64_t>& worker_ids);
  void SetPoisonDeaths(uint32_t deaths) {
    (void)Give(&Order::mutable_set_poison_deaths, [&](auto& set) { set.set_deaths(deaths); });
  }

  // ---- For operators.
  internal::Description DescribeQueues() {
    return Give(&Order::mutable_describe_queues).description();
  }
  internal::Connections ListConnections(const internal::ListConnections& request) {
    return Give(&Order::mutable_list_connections, request).connections();
  }
  google::protobuf::RepeatedPtrField<v1::ShardMove> ListShardMoves(
      const internal::ListShardMoves& request) {
    return Give(&Order::mutable_list_shard_moves, request).shard_moves();
  }

  // ---- Processes of native workers.
  struct ForkedWorker {
    internal::Forked facts;
    FileDescriptor pidfd;
    FileDescriptor session;  // the keeper's end; none: the worker has attached
  };
  absl::StatusOr<ForkedWorker> Fork(const internal::WorkerPlace& place,
                                    const internal::Program& program);
  // Returns the workers that a former keeper asked for and that are not reaped: all, or an error.
  absl::StatusOr<std::vector<ForkedWorker>> ListForks();
  internal::Reaped Reap(pid_t pid) {
    return Give(&Order::mutable_reap_worker, [&](auto& reap) { reap.set_pid(pid); }).reaped();
  }

  // ---- What the keeper holds for the one that follows it, by key. `descriptors` stay the
  // caller's.
  struct Held {
    std::string value;
    std::vector<FileDescriptor> descriptors;
  };
  using HeldByKey = std::map<std::string, Held>;
  // Returns false if the driver does not hold it, after it has logged why.
  bool Hold(const std::string& key, const std::string& value,
            const std::vector<int>& descriptors = {});
  void Drop(const std::string& key) {
    (void)Give(&Order::mutable_drop, [&](auto& drop) { drop.set_key(key); });
  }
  // Returns all that is held, which the driver goes on holding, or an error. `set_aside` receives
  // the entries that keepers died of, and that no keeper goes on with. Null: they are left out.
  absl::StatusOr<HeldByKey> TakeHeld(HeldByKey* set_aside = nullptr);
  // Calls `deal` while the driver knows what this keeper deals with. `what`: the same words in each
  // keeper that deals with the same thing. kFailedPrecondition: several keepers in a row have died
  // of it, and `deal` is not called. Calls must not be nested. Costs two orders.
  absl::Status DealWith(const std::string& what, const std::function<void()>& deal);
  // Calls `deal`, which goes on with a held entry. The driver sets it aside if keepers die of it.
  void DealWithHeld(const std::string& key, const std::function<void()>& deal);
  // Tells the driver what the keeper runs with, as batond would have to give it.
  void NoteService(const v1::ServiceConfig& service, bool distrust_contained_root) {
    (void)Give(&Order::mutable_note_service, [&](auto& note) {
      *note.mutable_service() = service;
      note.set_distrust_contained_root(distrust_contained_root);
    });
  }

  // Executes one order. `received`: descriptors that come with the answer; null: none do.
  virtual internal::DriverAnswer Execute(const internal::DriverOrder& order,
                                         std::vector<FileDescriptor> descriptors = {},
                                         std::vector<FileDescriptor>* received = nullptr) = 0;

 protected:
  // Returns what the driver has reported since the last call, the oldest first.
  virtual std::vector<internal::DriverNews> TakeNews() = 0;

  // Notes why the driver cannot be asked any more, and calls the listener as for a lost device.
  void NoteLost(const absl::Status& why);
  // Says what to do about a driver that knows no descriptors.
  static absl::Status DescriptorStatusIn(const internal::DriverAnswer& answer);
  // kResourceExhausted: not all descriptors of an answer have arrived.
  static absl::Status CheckArrived(size_t sent, size_t arrived);

  internal::Introduced introduced_;
  absl::Status lost_;

 private:
  using Order = internal::DriverOrder;

  template <typename Part>
  internal::DriverAnswer Give(Part* (Order::*part)(), const Part& value = Part()) {
    Order order;
    *(order.*part)() = value;
    return Execute(order);
  }
  // The same for a part that `fill` completes.
  template <typename Part, typename Fill>
  internal::DriverAnswer Give(Part* (Order::*part)(), const Fill& fill) {
    Order order;
    fill(*(order.*part)());
    return Execute(order);
  }
  absl::Status NoteDealing(const std::string& what, const std::string& held_key = "");
  void Deliver(const internal::DriverNews& news);
  absl::StatusOr<ForkedWorker> ReceiveFork(const internal::DriverOrder& order);

  DriverListener* listener_ = nullptr;
  bool counts_dealings_ = true;  // the driver does
  // No other keeper of the driver has given an order this number.
  uint64_t last_call_ = MonotonicNanoseconds();
  std::map<uint64_t, MoveDone> moves_;                                             // by call
  std::map<uint64_t, std::function<void(const internal::GrantChanged&)>> grants_;  // likewise
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_DRIVER_CLIENT_H_
