#include "supervisor/keeper/driver_client.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/closer.h"
#include "lib/base/status.h"
#include "spdlog/spdlog.h"

namespace baton::keeper {
namespace {

template <typename Places>
void Add(const DriverClient::Workers& workers, Places* places) {
  for (const internal::WorkerPlace& worker : workers) *places->Add() = worker;
}

}  // namespace

// ---------------------------------------------------------------- news

void DriverClient::DeliverNews() {
  for (const internal::DriverNews& news : TakeNews()) Deliver(news);
}

void DriverClient::NoteLost(const absl::Status& why) {
  lost_ = why;
  if (listener_ != nullptr) listener_->OnDeviceLost(why);
}

void DriverClient::Deliver(const internal::DriverNews& news) {
  if (news.has_moved()) {
    // A former keeper ordered a move that is unknown here.
    auto move = moves_.extract(news.moved().move());
    if (move) move.mapped()(StatusIn(news.moved()), news.moved().blackout_us());
  }
  if (news.has_grant_changed()) {
    auto grant = grants_.extract(news.grant_changed().call());
    if (grant) grant.mapped()(news.grant_changed());
  }
  if (listener_ == nullptr) return;
  if (news.has_event()) listener_->OnEvent(news.event());
  if (news.has_fenced()) listener_->OnFenced(news.fenced().id());
  if (news.has_thread_ended()) listener_->OnThreadEnded(news.thread_ended().id());
  if (news.has_device_lost()) listener_->OnDeviceLost(StatusIn(news.device_lost()));
}

// ---------------------------------------------------------------- workers

absl::Status DriverClient::AddWorker(const internal::AddWorker& worker, FileDescriptor wake) {
  internal::DriverOrder order;
  *order.mutable_add_worker() = worker;
  std::vector<FileDescriptor> descriptors;
  descriptors.push_back(std::move(wake));
  return StatusIn(Execute(order, std::move(descriptors)));
}

void DriverClient::ChangeWorker(uint32_t slot, uint64_t id, Change::Change change) {
  internal::DriverOrder order;
  order.mutable_change_worker()->mutable_worker()->set_slot(slot);
  order.mutable_change_worker()->mutable_worker()->set_id(id);
  order.mutable_change_worker()->set_change(change);
  (void)Execute(order);
}

absl::Status DriverClient::Detach(uint32_t slot, uint64_t id) {
  internal::DriverOrder order;
  order.mutable_detach_worker()->mutable_worker()->set_slot(slot);
  order.mutable_detach_worker()->mutable_worker()->set_id(id);
  const internal::DriverAnswer answer = Execute(order);
  BATON_RETURN_IF_ERROR(StatusIn(answer));
  if (answer.yes()) return absl::OkStatus();
  return absl::FailedPreconditionError("the worker was fenced and is being killed");
}

bool DriverClient::Retire(const Workers& workers) {
  internal::DriverOrder order;
  Add(workers, order.mutable_retire_workers()->mutable_workers());
  return Execute(order).yes();
}

bool DriverClient::Promote(const Workers& new_workers, const Workers& old_workers) {
  internal::DriverOrder order;
  Add(new_workers, order.mutable_promote_workers()->mutable_new_workers());
  Add(old_workers, order.mutable_promote_workers()->mutable_old_workers());
  return Execute(order).yes();
}

// ---------------------------------------------------------------- shards

internal::ShardsSeen DriverClient::LookAtShards() {
  internal::DriverAnswer answer = Give(&Order::mutable_look_at_shards);
  // The answer of a driver that is gone names no shard.
  const int shards = static_cast<int>(arena().shape().shards);
  while (answer.shards().shards_size() < shards) answer.mutable_shards()->add_shards();
  return std::move(*answer.mutable_shards());
}

uint64_t DriverClient::HandOver(uint32_t shard, uint32_t slot, MoveDone done) {
  const uint64_t move = ++last_call_;
  moves_[move] = std::move(done);
  internal::DriverOrder order;
  order.mutable_hand_over()->set_move(move);
  order.mutable_hand_over()->set_shard(shard);
  order.mutable_hand_over()->set_slot(slot);
  (void)Execute(order);
  return move;
}

void DriverClient::CancelHandOver(uint64_t move, uint32_t shard, const std::string& why) {
  internal::DriverOrder order;
  order.mutable_cancel_hand_over()->set_move(move);
  order.mutable_cancel_hand_over()->set_shard(shard);
  order.mutable_cancel_hand_over()->set_why(why);
  (void)Execute(order);
}

absl::Status DriverClient::CheckStoredState(const StateVersions& reader) {
  internal::DriverOrder order;
  order.mutable_check_stored_state()->set_reads_min(reader.reads_min);
  order.mutable_check_stored_state()->set_reads_max(reader.reads_max);
  order.mutable_check_stored_state()->set_writes(reader.writes);
  return StatusIn(Execute(order));
}

// ---------------------------------------------------------------- listeners, connections, grants

absl::Status DriverClient::Listen(const verbs::Address& address) {
  return ListenFor({}, address, /*max_listeners=*/0).status();
}

absl::StatusOr<internal::Listening> DriverClient::ListenFor(const Asker& asker,
                                                            const verbs::Address& address,
                                                            uint32_t max_listeners) {
  internal::DriverOrder order;
  order.mutable_listen_at()->set_host(address.host);
  order.mutable_listen_at()->set_port(address.port);
  order.mutable_listen_at()->set_worker_id(asker.worker_id);
  order.mutable_listen_at()->set_number(asker.number);
  order.mutable_listen_at()->set_max_listeners(max_listeners);
  const internal::DriverAnswer answer = Execute(order);
  BATON_RETURN_IF_ERROR(StatusIn(answer));
  return answer.listening();
}

absl::StatusOr<internal::Connecting> DriverClient::ConnectFor(
    const Asker& asker, const internal::ConnectRequest& request) {
  internal::DriverOrder order;
  order.mutable_connect_to()->set_worker_id(asker.worker_id);
  order.mutable_connect_to()->set_number(asker.number);
  *order.mutable_connect_to()->mutable_request() = request;
  const internal::DriverAnswer answer = Execute(order);
  BATON_RETURN_IF_ERROR(StatusIn(answer));
  return answer.connecting();
}

absl::Status DriverClient::GrantFor(const Asker& asker, const internal::GrantRequest& request,
                                    Granted done) {
  const uint64_t call = ++last_call_;
  grants_[call] = [done = std::move(done)](const internal::GrantChanged& changed) {
    const absl::Status status = StatusIn(changed);
    status.ok() ? done(changed.granted()) : done(status);
  };
  internal::DriverOrder order;
  order.mutable_reserve_grant()->set_call(call);
  order.mutable_reserve_grant()->set_worker_id(asker.worker_id);
  order.mutable_reserve_grant()->set_number(asker.number);
  *order.mutable_reserve_grant()->mutable_request() = request;
  absl::Status status = StatusIn(Execute(order));
  if (!status.ok()) grants_.erase(call);
  return status;
}

void DriverClient::Revoke(const Asker& asker, const internal::RevokeRequest& request,
                          Revoked done) {
  const uint64_t call = ++last_call_;
  grants_[call] = [done = std::move(done)](const internal::GrantChanged& changed) {
    done(StatusIn(changed));
  };
  internal::DriverOrder order;
  order.mutable_revoke_grant()->set_call(call);
  order.mutable_revoke_grant()->set_grant(request.grant());
  order.mutable_revoke_grant()->set_region(request.region());
  order.mutable_revoke_grant()->set_worker_id(asker.worker_id);
  order.mutable_revoke_grant()->set_number(asker.number);
  (void)Execute(order);
}

// ---------------------------------------------------------------- descriptors of workers

absl::Status DriverClient::DescriptorStatusIn(const internal::DriverAnswer& answer) {
  absl::Status status = StatusIn(answer);
  if (!absl::IsUnimplemented(status)) return status;
  return absl::UnimplementedError(
      "the driver of this service is of a release that holds no descriptors: it is replaced when "
      "the service is started again");
}

absl::StatusOr<uint64_t> DriverClient::HoldDescriptorFor(const Asker& asker, uint64_t tag,
                                                         int descriptor) {
  internal::DriverOrder order;
  order.mutable_hold_descriptor()->set_worker_id(asker.worker_id);
  order.mutable_hold_descriptor()->set_number(asker.number);
  order.mutable_hold_descriptor()->set_tag(tag);
  std::vector<FileDescriptor> copies;
  copies.push_back(CopyOf(descriptor));
  if (!copies.front()) return ErrnoStatus(errno, "copying a descriptor (see RLIMIT_NOFILE)");
  const internal::DriverAnswer answer = Execute(order, std::move(copies));
  BATON_RETURN_IF_ERROR(DescriptorStatusIn(answer));
  return answer.count();
}

absl::StatusOr<FileDescriptor> DriverClient::TakeDescriptor(uint64_t number) {
  internal::DriverOrder order;
  order.mutable_take_descriptor()->set_number(number);
  std::vector<FileDescriptor> received;
  const internal::DriverAnswer answer = Execute(order, {}, &received);
  BATON_RETURN_IF_ERROR(DescriptorStatusIn(answer));
  BATON_RETURN_IF_ERROR(CheckArrived(1, received.size()));
  return std::move(received.front());
}

absl::Status DriverClient::DropDescriptor(uint64_t number) {
  internal::DriverOrder order;
  order.mutable_drop_descriptor()->set_number(number);
  std::vector<FileDescriptor> received;
  const internal::DriverAnswer answer = Execute(order, {}, &received);
  // When the driver executes another order it has closed its own duplicate, and the close here is
  // the last.
  if (!received.empty()) ShowLife();
  for (FileDescriptor& dropped : received) CloseFileLater(std::move(dropped));
  return DescriptorStatusIn(answer);
}

absl::StatusOr<internal::HeldNumbers> DriverClient::ListDescriptors(uint64_t tag) {
  internal::DriverOrder order;
  order.mutable_list_descriptors()->set_tag(tag);
  const internal::DriverAnswer answer = Execute(order);
  BATON_RETURN_IF_ERROR(DescriptorStatusIn(answer));
  return answer.held_numbers();
}

// ---------------------------------------------------------------- admission

DriverClient::Counted DriverClient::CountConnections() {
  const internal::DriverAnswer answer = Give(&Order::mutable_count_connections);
  return {answer.count(), answer.refused()};
}

internal::ServiceAccounts DriverClient::Account(const std::vector<uint64_t>& worker_ids) {
  internal::DriverOrder order;
  order.mutable_account();
  for (const uint64_t id : worker_ids) order.mutable_account()->add_worker_ids(id);
  return Execute(order).accounts();
}

// ---------------------------------------------------------------- native workers

absl::StatusOr<DriverClient::ForkedWorker> DriverClient::Fork(const internal::WorkerPlace& place,
                                                              const internal::Program& program) {
  internal::DriverOrder order;
  *order.mutable_fork_worker()->mutable_place() = place;
  *order.mutable_fork_worker()->mutable_program() = program;
  return ReceiveFork(order);
}

absl::StatusOr<std::vector<DriverClient::ForkedWorker>> DriverClient::ListForks() {
  std::vector<ForkedWorker> forks;
  internal::DriverOrder order;
  order.mutable_next_fork();
  for (;;) {
    BATON_ASSIGN_OR_RETURN(ForkedWorker fork, ReceiveFork(order));
    if (fork.facts.pid() == 0) return forks;
    order.mutable_next_fork()->set_after(fork.facts.pid());
    forks.push_back(std::move(fork));
  }
}

absl::Status DriverClient::CheckArrived(size_t sent, size_t arrived) {
  if (arrived == sent) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the driver sent ", sent, " descriptors and ",
                                                   arrived, " arrived: raise RLIMIT_NOFILE"));
}

absl::StatusOr<DriverClient::ForkedWorker> DriverClient::ReceiveFork(
    const internal::DriverOrder& order) {
  std::vector<FileDescriptor> received;
  internal::DriverAnswer answer = Execute(order, {}, &received);
  BATON_RETURN_IF_ERROR(StatusIn(answer));
  ForkedWorker fork;
  fork.facts = std::move(*answer.mutable_forked());
  if (fork.facts.pid() == 0) return fork;
  const size_t sent = fork.facts.attached() ? 1 : 2;
  BATON_RETURN_IF_ERROR(CheckArrived(sent, received.size()));
  fork.pidfd = std::move(received[0]);
  if (sent == 2) fork.session = std::move(received[1]);
  return fork;
}

// ---------------------------------------------------------------- for the next keeper

bool DriverClient::Hold(const std::string& key, const std::string& value,
                        const std::vector<int>& descriptors) {
  internal::DriverOrder order;
  order.mutable_hold()->set_key(key);
  order.mutable_hold()->set_value(value);
  order.mutable_hold()->set_descriptors(static_cast<uint32_t>(descriptors.size()));
  std::vector<FileDescriptor> copies;
  absl::Status held;
  for (const int descriptor : descriptors) {
    copies.push_back(CopyOf(descriptor));
    if (!copies.back()) held = ErrnoStatus(errno, "copying its descriptor (see RLIMIT_NOFILE)");
  }
  if (held.ok()) held = StatusIn(Execute(order, std::move(copies)));
  if (!held.ok()) spdlog::error("the next keeper will not know of {}: {}", key, MessageOf(held));
  return held.ok();
}

absl::StatusOr<DriverClient::HeldByKey> DriverClient::TakeHeld(HeldByKey* set_aside) {
  HeldByKey all;
  internal::DriverOrder order;
  order.mutable_take_next_held();
  for (;;) {
    Held held;
    internal::DriverAnswer answer = Execute(order, {}, &held.descriptors);
    BATON_RETURN_IF_ERROR(StatusIn(answer));
    if (!answer.has_held()) return all;
    if (answer.held().has_descriptors()) {
      BATON_RETURN_IF_ERROR(CheckArrived(answer.held().descriptors(), held.descriptors.size()));
    }
    held.value = std::move(*answer.mutable_held()->mutable_value());
    const std::string& key = answer.held().key();
    order.mutable_take_next_held()->set_after(key);
    if (answer.held().set_aside().empty()) {
      all[key] = std::move(held);
    } else if (set_aside != nullptr) {
      (*set_aside)[key] = std::move(held);
    }
  }
}

// A driver of a former release does not count. It is asked once.
absl::Status DriverClient::NoteDealing(const std::string& what, const std::string& held_key) {
  if (!counts_dealings_) return absl::OkStatus();
  internal::DriverOrder order;
  order.mutable_deal_with()->set_what(what);
  order.mutable_deal_with()->set_held_key(held_key);
  absl::Status status = StatusIn(Execute(order));
  counts_dealings_ = !absl::IsUnimplemented(status);
  return absl::IsFailedPrecondition(status) ? status : absl::OkStatus();
}

absl::Status DriverClient::DealWith(const std::string& what, const std::function<void()>& deal) {
  BATON_RETURN_IF_ERROR(NoteDealing(what));
  deal();
  (void)NoteDealing("");
  return absl::OkStatus();
}

void DriverClient::DealWithHeld(const std::string& key, const std::function<void()>& deal) {
  (void)NoteDealing(absl::StrCat("held ", key), key);
  deal();
  (void)NoteDealing("");
}

}  // namespace baton::keeper
