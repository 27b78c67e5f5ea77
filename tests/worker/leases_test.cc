// Leases of raw peers, which know verbs and nothing of Baton, at a service whose owners die and
// change.
#include "worker/leases.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/status.h"
#include "tests/harness/setting.h"
#include "tests/worker/worker_fixture.h"
#include "worker/heap.h"
#include "worker/heap_grants.h"
#include "worker/worker_impl.h"

namespace baton {
namespace {

using testing::kHeapBytes;
using testing::RawPeer;
using testing::ReceiveSlot;
using testing::ScriptedService;
using testing::WorkerFixture;
using verbs::CompletionStatus;
using verbs::Opcode;
using Kind = Completion::Kind;

constexpr uint32_t kLeasesFormat = 1;
constexpr uint32_t kAll = verbs::kRemoteRead | verbs::kRemoteWrite | verbs::kRemoteAtomic;
constexpr uint64_t kSecond = 1'000'000'000;

// The message in which a peer asks for something, and the answer.
struct Ask {
  enum What : uint32_t { kAllocate, kFree, kRenew };
  uint32_t what = kAllocate;
  uint32_t id = 0;
  LeaseRequest request = {};
};
struct Answer {
  int32_t code;  // absl::StatusCode
  uint32_t reserved;
  Lease lease;
};

template <typename T>
std::string BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
template <typename T>
T ValueOf(std::string_view text) {
  T value = {};
  std::memcpy(&value, text.data(), std::min(text.size(), sizeof(value)));
  return value;
}

struct Client {
  RawPeer raw;
  uint64_t posted = 0;  // sends
  bool ended() const { return raw.disconnected || raw.rejected; }
};

class LeasesTest : public WorkerFixture {
 protected:
  // Steps of a completion, after each of which an owner may end. kHalf is inside the library: a
  // lease is granted and is in no state, or is revoked and its memory is not freed.
  enum Step { kBegin, kHalf, kDone, kAnswered, kStored, kSteps };

  void StartService(uint32_t state_bytes = Leases::BytesFor(Leases::kMostLeases)) {
    Start([=](v1::ServiceConfig* config) {
      config->set_connection_state_bytes(state_bytes);
      config->set_shard_heap_bytes(kHeapBytes);
      config->set_max_workers(64);
    });
    KeepStandbys();
    ASSERT_TRUE(Await([&] { return Owned() != nullptr; }));
  }

  Worker* AddOwner() {
    ScriptedService& service = NewService();
    Worker* const worker = Add(&service, CommitMode::kAfterEachCompletion);
    service.on_adopt = [this](Shard& shard) { return Adopt(shard); };
    service.on_completion = [this, &service](Shard& shard, const Completion& completion) {
      if (dead.contains(&service)) return;
      const absl::Status status = Handle(shard, completion);
      if (status.ok() || dead.contains(&service)) return;
      errors.push_back(status);
      shard.Abandon();
      EXPECT_EQ(shard.Disconnect(*completion.connection), absl::OkStatus());
    };
    services.push_back(&service);
    return worker;
  }
  // Dead owners leave: nobody's bank and slot are theirs for ever.
  void KeepStandbys() {
    for (Worker* worker : ended) Remove(worker);
    ended.clear();
    while (services.size() < dead.size() + 2) AddOwner();
  }
  // Ends the shard's owner as a crash does: nothing that is staged happens.
  void Die(Shard& shard) {
    for (ScriptedService* service : services) {
      const auto found = service->shards.find(shard.index());
      if (found != service->shards.end() && found->second == &shard) dead.insert(service);
    }
    Worker& worker = shard.worker();
    driver_process::Engine& engine = keeper.engine();
    engine.Run([&] {
      engine.succession().WorkerEnded(engine.succession().ownership(shard.index()).owner_slot(),
                                      worker.id(), "crash");
    });
    ended.push_back(&worker);
  }
  // The next `times` owners that come there end there.
  void Arm(Step step, int times = 1) {
    dies_at = step;
    deaths = times;
  }
  bool IsArmed(Step step) const { return deaths > 0 && dies_at == step; }
  // Returns whether the owner has ended here.
  bool Ends(Shard& shard, Step step) {
    if (!IsArmed(step)) return false;
    --deaths;
    Die(shard);
    return true;
  }

  // ---------------------------------------------------------------- the service

  absl::Status Adopt(Shard& shard) {
    std::set<uint64_t> known;
    for (Connection* connection : shard.connections()) {
      if (connection->state().empty()) continue;
      BATON_ASSIGN_OR_RETURN(Leases leases, Leases::Load(*connection, connection->state()));
      BATON_RETURN_IF_ERROR(leases.FreeOverdue(now));
      BATON_RETURN_IF_ERROR(shard.SetState(*connection, leases.state(), kLeasesFormat));
      for (const Lease& lease : leases.all()) known.insert(lease.offset);
    }
    return HeapGrants::FreeLost(
        shard, [&](const Buffer& buffer) { return known.contains(buffer.offset); });
  }

  absl::Status Handle(Shard& shard, const Completion& completion) {
    Connection& connection = *completion.connection;
    AcceptWith(shard, completion, 8);
    if (completion.kind == Kind::kDisconnected || completion.kind == Kind::kConnectFailed) {
      return HandleEnd(shard, connection);
    }
    const bool received =
        completion.kind == Kind::kReceive && completion.status == verbs::CompletionStatus::kSuccess;
    if (!received) return absl::OkStatus();
    return completion.opcode == verbs::CompletionOpcode::kReceiveWithImmediate
               ? HandleNotice(shard, completion)
               : HandleAsk(shard, completion);
  }
  absl::Status HandleEnd(Shard& shard, Connection& connection) {
    BATON_ASSIGN_OR_RETURN(Leases leases, Leases::Load(connection, connection.state()));
    if (Ends(shard, kBegin)) return absl::OkStatus();
    if (!leases.all().empty() && Half(shard, leases.all()[0])) return absl::OkStatus();
    BATON_RETURN_IF_ERROR(leases.FreeAll());
    (void)Ends(shard, kDone);
    return absl::OkStatus();
  }
  absl::Status HandleAsk(Shard& shard, const Completion& completion) {
    Connection& connection = *completion.connection;
    const Ask ask = ValueOf<Ask>(TextOf(completion));
    BATON_ASSIGN_OR_RETURN(Leases leases, Leases::Load(connection, connection.state()));
    if (Ends(shard, kBegin) || HalfOf(shard, leases, ask)) return absl::OkStatus();
    const absl::StatusOr<Lease> result = Do(leases, ask);
    if (Ends(shard, kDone)) return absl::OkStatus();
    const Answer answer = {static_cast<int32_t>(result.status().code()), 0,
                           result.ok() ? *result : Lease{}};
    BATON_RETURN_IF_ERROR(SendText(shard, connection, BytesOf(answer)));
    const Buffer slot = ReceiveSlot(connection, connection.next_receive());
    BATON_RETURN_IF_ERROR(shard.Receive(connection, {&slot, 1}));
    if (Ends(shard, kAnswered)) return absl::OkStatus();
    BATON_RETURN_IF_ERROR(shard.SetState(connection, leases.state(), kLeasesFormat));
    (void)Ends(shard, kStored);
    return absl::OkStatus();
  }
  absl::Status HandleNotice(Shard& shard, const Completion& completion) {
    Connection& connection = *completion.connection;
    BATON_ASSIGN_OR_RETURN(const Leases leases, Leases::Load(connection, connection.state()));
    if (Ends(shard, kBegin)) return absl::OkStatus();
    const Lease* const lease = leases.Find(completion.immediate);
    if (lease == nullptr) return absl::NotFoundError("a notice of no lease");
    EXPECT_TRUE(completion.kind == Kind::kReceive && completion.has_immediate);
    const uint8_t* const at = shard.heap().At(lease->memory());
    notices.emplace_back(lease->id, std::string(at, at + completion.byte_len));
    const Buffer slot = ReceiveSlot(connection, connection.next_receive());
    return shard.Receive(connection, {&slot, 1});
  }
  absl::StatusOr<Lease> Do(Leases& leases, const Ask& ask) const {
    if (ask.what == Ask::kAllocate) return leases.Allocate(ask.request, now);
    if (ask.what == Ask::kRenew) return leases.Renew(ask.id, ask.request.duration_ns, now);
    BATON_RETURN_IF_ERROR(leases.Free(ask.id));
    return Lease{};
  }
  // Does what Allocate or Free has done when its owner dies in the middle of it.
  bool HalfOf(Shard& shard, const Leases& leases, const Ask& ask) {
    if (ask.what == Ask::kFree && leases.Find(ask.id) != nullptr) {
      return Half(shard, *leases.Find(ask.id));
    }
    if (ask.what != Ask::kAllocate || !IsArmed(kHalf)) return false;
    EXPECT_TRUE(HeapGrants::Allocate(shard, 64, Leases::kAlignment, verbs::kRemoteRead).ok());
    return Ends(shard, kHalf);
  }
  bool Half(Shard& shard, const Lease& lease) {
    if (!IsArmed(kHalf)) return false;
    EXPECT_EQ(HeapGrants::Revoke(shard, lease.memory(), lease.grant), absl::OkStatus());
    return Ends(shard, kHalf);
  }
  // The service's timer. An owner that dies in it has committed nothing.
  void Expire(bool ends = false) {
    Shard* const shard = Owned();
    ASSERT_NE(shard, nullptr);
    for (Connection* connection : shard->connections()) {
      if (connection->state().empty()) continue;
      auto leases = Leases::Load(*connection, connection->state());
      ASSERT_TRUE(leases.ok()) << leases.status();
      ASSERT_EQ(leases->FreeOverdue(now), absl::OkStatus());
      ASSERT_EQ(shard->SetState(*connection, leases->state(), kLeasesFormat), absl::OkStatus());
    }
    if (ends) return Die(*shard);
    ASSERT_EQ(shard->Commit(), absl::OkStatus());
  }

  // ---------------------------------------------------------------- peers

  // Owners that die have successors.
  [[nodiscard]] bool Await(const std::function<bool()>& done) {
    return driver::testing::Pump(
        [&] {
          Turn();
          KeepStandbys();
        },
        done);
  }
  Client* AddClient() {
    Client* const client = clients.emplace_back(std::make_unique<Client>()).get();
    Connect(client->raw, *workers[0]);
    EXPECT_TRUE(Await([&] { return client->raw.established; }));
    return client;
  }
  // Its owners are told.
  void Leave(Client* client) {
    client->raw.Disconnect();
    EXPECT_TRUE(Await([&] { return client->raw.disconnected; }));
    std::erase(peers, &client->raw);
    std::erase_if(clients, [&](const auto& item) { return item.get() == client; });
  }
  Answer Call(Client* client, const Ask& ask) {
    RawPeer& raw = client->raw;
    const size_t answers = raw.received.size();
    raw.Receive();
    raw.Send(BytesOf(ask));
    ++client->posted;
    EXPECT_TRUE(
        Await([&] { return raw.received.size() > answers && raw.sent.size() == client->posted; }));
    return raw.received.size() > answers ? ValueOf<Answer>(raw.received.back()) : Answer{-1, 0, {}};
  }
  static Ask AskFor(uint64_t request, uint64_t bytes, uint32_t access = kAll,
                    uint64_t duration_ns = 0) {
    return {Ask::kAllocate, 0, {request, bytes, access, duration_ns}};
  }
  Lease Allocate(Client* client, uint64_t request, uint64_t bytes, uint32_t access = kAll,
                 uint64_t duration_ns = 0) {
    const Answer answer = Call(client, AskFor(request, bytes, access, duration_ns));
    EXPECT_EQ(answer.code, 0);
    return answer.lease;
  }
  void Free(Client* client, const Lease& lease) {
    EXPECT_EQ(Call(client, {Ask::kFree, lease.id, {}}).code, 0);
  }
  // One request on the lease's memory at `offset`, whose local bytes are `*bytes`.
  CompletionStatus Use(Client* client, const Lease& lease, Opcode opcode, uint64_t offset,
                       std::string* bytes, uint64_t compare_add = 0, uint64_t swap = 0) {
    RawPeer& raw = client->raw;
    uint8_t* const local = raw.send_slot(client->posted);
    bytes->copy(reinterpret_cast<char*>(local), bytes->size());
    verbs::SendRequest request;
    request.opcode = opcode;
    request.rkey = lease.rkey;
    request.remote_address = lease.remote_address + offset;
    request.compare_add = compare_add;
    request.swap = swap;
    request.immediate = lease.id;
    raw.Post(request, static_cast<uint32_t>(bytes->size()));
    ++client->posted;
    EXPECT_TRUE(Await([&] { return raw.sent.size() == client->posted; }));
    bytes->assign(reinterpret_cast<const char*>(local), bytes->size());
    return raw.sent.empty() ? CompletionStatus::kFlushError : raw.sent.back().status;
  }
  void Write(Client* client, const Lease& lease, uint64_t offset, std::string bytes) {
    EXPECT_EQ(Use(client, lease, Opcode::kWrite, offset, &bytes), CompletionStatus::kSuccess);
  }
  std::string Read(Client* client, const Lease& lease, uint64_t offset, size_t length) {
    std::string bytes(length, '?');
    EXPECT_EQ(Use(client, lease, Opcode::kRead, offset, &bytes), CompletionStatus::kSuccess);
    return bytes;
  }
  // Returns the word before.
  uint64_t FetchAdd(Client* client, const Lease& lease, uint64_t offset, uint64_t added) {
    std::string word(8, '?');
    EXPECT_EQ(Use(client, lease, Opcode::kFetchAndAdd, offset, &word, added),
              CompletionStatus::kSuccess);
    return ValueOf<uint64_t>(word);
  }
  uint64_t CompareSwap(Client* client, const Lease& lease, uint64_t offset, uint64_t expected,
                       uint64_t value) {
    std::string word(8, '?');
    EXPECT_EQ(Use(client, lease, Opcode::kCompareAndSwap, offset, &word, expected, value),
              CompletionStatus::kSuccess);
    return ValueOf<uint64_t>(word);
  }

  // ---------------------------------------------------------------- what there is

  // The owner's only shard; null if nobody has it now.
  Shard* Owned() {
    for (ScriptedService* service : services) {
      if (!dead.contains(service) && !service->shards.empty()) return service->shards.at(0);
    }
    return nullptr;
  }
  Connection* OnlyConnection() {
    Shard* const shard = Owned();
    const auto connections = shard == nullptr ? std::vector<Connection*>() : shard->connections();
    return connections.size() == 1 ? connections[0] : nullptr;
  }
  // The offsets of the memory that is granted, and of what the heap keeps.
  std::multiset<uint64_t> Granted() {
    std::multiset<uint64_t> granted;
    for (uint32_t i = 0; i < arena::kGrants; ++i) {
      const arena::GrantRecord& grant = keeper.engine().arena().grant(i);
      if (arena::LoadAcquire(grant.length) != 0) granted.insert(arena::LoadRelaxed(grant.offset));
    }
    return granted;
  }
  static std::multiset<uint64_t> Kept(Shard& shard) {
    std::multiset<uint64_t> kept;
    EXPECT_EQ(shard.heap().ForEachAllocated([&](const Buffer& buffer, bool is_kept) {
      EXPECT_TRUE(is_kept);
      kept.insert(buffer.offset);
    }),
              absl::OkStatus());
    return kept;
  }
  // All that is kept and granted is of these leases.
  [[nodiscard]] bool HasOnly(const std::vector<Lease>& leases) {
    std::multiset<uint64_t> expected;
    for (const Lease& lease : leases) expected.insert(lease.offset);
    return Await([&] {
      Shard* const shard = Owned();
      return shard != nullptr && Granted() == expected && Kept(*shard) == expected;
    });
  }
  Heap::Statistics Statistics() {
    EXPECT_TRUE(Await([&] { return Owned() != nullptr; }));
    const auto statistics = Owned()->heap().statistics();
    EXPECT_TRUE(statistics.ok()) << statistics.status();
    return statistics.value_or(Heap::Statistics{});
  }
  // Everything can be allocated again. What was freed and is held is looked at when it is needed.
  void ExpectAllFree(const Heap::Statistics& before) {
    EXPECT_TRUE(HasOnly({}));
    Heap& heap = Owned()->heap();
    const auto all = heap.AllocateScratch(before.largest_free);
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ(heap.Free(*all), absl::OkStatus());
    const Heap::Statistics after = Statistics();
    EXPECT_EQ(after.kept, 0u);
    EXPECT_EQ(after.scratch, 0u);
    EXPECT_EQ(after.free + after.held, before.free + before.held);
  }

  uint64_t now = 1000 * kSecond;  // the service's
  Step dies_at = kSteps;
  int deaths = 0;
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<ScriptedService*> services;
  std::set<const ScriptedService*> dead;
  std::vector<Worker*> ended;
  std::vector<absl::Status> errors;
  std::vector<std::pair<uint32_t, std::string>> notices;  // lease, and what its memory begins with
};

TEST_F(LeasesTest, shouldLeaseMemoryForReadsWritesAndAtomics) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const Heap::Statistics before = Statistics();
  Client* const client = AddClient();
  const Lease lease = Allocate(client, 7, 1000);
  EXPECT_EQ(lease.request, 7u);
  EXPECT_EQ(lease.bytes, 1000u);
  EXPECT_EQ(lease.remote_address % 8, 0u);
  EXPECT_NE(lease.id, 0u);
  EXPECT_TRUE(HasOnly({lease}));
  Write(client, lease, 990, "ten bytes.");
  EXPECT_EQ(Read(client, lease, 988, 12), std::string("\0\0ten bytes.", 12));
  EXPECT_EQ(FetchAdd(client, lease, 8, 5), 0u);
  EXPECT_EQ(FetchAdd(client, lease, 8, 2), 5u);
  EXPECT_EQ(CompareSwap(client, lease, 8, 6, 100), 7u);
  EXPECT_EQ(CompareSwap(client, lease, 8, 7, 100), 7u);
  EXPECT_EQ(ValueOf<uint64_t>(Read(client, lease, 8, 8)), 100u);
  Free(client, lease);
  EXPECT_TRUE(HasOnly({}));
  std::string bytes(8, '?');
  EXPECT_EQ(Use(client, lease, Opcode::kRead, 0, &bytes), CompletionStatus::kRemoteAccessError);
  ASSERT_NO_FATAL_FAILURE(ExpectAllFree(before));
  EXPECT_TRUE(errors.empty());
}

TEST_F(LeasesTest, shouldGiveTheOwnerNoticeOfAWriteWithImmediate) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  Client* const client = AddClient();
  const Lease first = Allocate(client, 1, 64);
  const Lease second = Allocate(client, 2, 64);
  std::string bytes = "news";
  EXPECT_EQ(Use(client, second, Opcode::kWriteWithImmediate, 0, &bytes),
            CompletionStatus::kSuccess);
  ASSERT_TRUE(Await([&] { return notices.size() == 1; }));
  EXPECT_EQ(notices[0], std::pair(second.id, std::string("news")));
  // One notice for several WRITEs, whose owner dies of it: its successor is given it.
  Write(client, first, 2, "longer");
  bytes = "no";
  Arm(kBegin);
  EXPECT_EQ(Use(client, first, Opcode::kWriteWithImmediate, 0, &bytes), CompletionStatus::kSuccess);
  ASSERT_TRUE(Await([&] { return notices.size() == 2; }));
  EXPECT_EQ(deaths, 0);
  EXPECT_EQ(notices[1], std::pair(first.id, std::string("no")));
  EXPECT_EQ(Read(client, first, 0, 8), "nolonger");
  // Without a right to write there is none, and the peer's connection ends.
  const Lease third = Allocate(client, 3, 64, verbs::kRemoteRead);
  EXPECT_EQ(Use(client, third, Opcode::kWriteWithImmediate, 0, &bytes),
            CompletionStatus::kRemoteAccessError);
  Leave(client);
  EXPECT_TRUE(HasOnly({}));
  EXPECT_EQ(notices.size(), 2u);
  EXPECT_TRUE(errors.empty());
}

TEST_F(LeasesTest, shouldEndOnlyThePeerThatGoesBeyondItsLease) {
  const struct {
    Opcode opcode;
    uint32_t access;
    int64_t offset;
    uint32_t length;
  } kAttempts[] = {
      {Opcode::kWrite, kAll, 57, 8},
      {Opcode::kWrite, kAll, -1, 8},
      {Opcode::kRead, kAll, 64, 1},
      {Opcode::kFetchAndAdd, kAll, 64, 8},
      {Opcode::kWrite, verbs::kRemoteRead, 0, 8},
      {Opcode::kRead, verbs::kRemoteWrite, 0, 8},
      {Opcode::kFetchAndAdd, verbs::kRemoteRead | verbs::kRemoteWrite, 0, 8},
      {Opcode::kCompareAndSwap, verbs::kRemoteRead | verbs::kRemoteWrite, 0, 8},
  };
  ASSERT_NO_FATAL_FAILURE(StartService());
  Client* const good = AddClient();
  const Lease kept = Allocate(good, 1, 64);
  Write(good, kept, 0, "mine");
  for (const auto& attempt : kAttempts) {
    SCOPED_TRACE(&attempt - kAttempts);
    Client* const bad = AddClient();
    const Lease lease = Allocate(bad, 1, 64, attempt.access);
    const Lease neighbour = Allocate(bad, 2, 64);
    std::string bytes(attempt.length, 'x');
    EXPECT_EQ(Use(bad, lease, attempt.opcode, static_cast<uint64_t>(attempt.offset), &bytes, 1, 1),
              CompletionStatus::kRemoteAccessError);
    const uint8_t* const beside = Owned()->heap().At(neighbour.memory());
    EXPECT_EQ(std::count(beside, beside + 64, uint8_t{0}), 64);
    Leave(bad);
    EXPECT_TRUE(HasOnly({kept}));
  }
  EXPECT_EQ(Read(good, kept, 0, 4), "mine");
  EXPECT_FALSE(good->ended());
  EXPECT_TRUE(errors.empty());
}

TEST_F(LeasesTest, shouldAnswerARepeatedRequestWithTheSameLease) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  Client* const client = AddClient();
  const Lease lease = Allocate(client, 7, 100, kAll, kSecond);
  const Lease again = Allocate(client, 7, 100, kAll, kSecond);
  EXPECT_EQ(BytesOf(again), BytesOf(lease));
  for (const Ask& other :
       {AskFor(7, 101, kAll, kSecond), AskFor(7, 100, verbs::kRemoteRead, kSecond),
        AskFor(7, 100, kAll, 2 * kSecond)}) {
    EXPECT_EQ(Call(client, other).code, static_cast<int>(absl::StatusCode::kAlreadyExists));
  }
  EXPECT_TRUE(HasOnly({lease}));
  // The number of another peer's request is another.
  Client* const second = AddClient();
  const Lease others = Allocate(second, 7, 100, kAll, kSecond);
  EXPECT_NE(others.rkey, lease.rkey);
  EXPECT_TRUE(HasOnly({lease, others}));
  // A free that is late, or comes twice, frees nothing that came since.
  Free(client, lease);
  Free(client, lease);
  const Lease next = Allocate(client, 7, 100, kAll, kSecond);
  EXPECT_NE(next.id, lease.id);
  Free(client, lease);
  EXPECT_TRUE(HasOnly({others, next}));
  EXPECT_TRUE(errors.empty());
}

TEST_F(LeasesTest, shouldRefuseRequestsThatCannotBeMet) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  Client* const client = AddClient();
  const struct {
    Ask ask;
    absl::StatusCode code;
  } kAsks[] = {
      {AskFor(1, 0), absl::StatusCode::kInvalidArgument},
      {AskFor(1, 7), absl::StatusCode::kInvalidArgument},  // no room for an atomic
      {AskFor(1, uint64_t{1} << 32), absl::StatusCode::kInvalidArgument},
      {AskFor(1, 64, 0), absl::StatusCode::kInvalidArgument},
      {AskFor(1, 64, verbs::kLocalWrite | verbs::kRemoteRead), absl::StatusCode::kInvalidArgument},
      {AskFor(1, 64, kAll, Leases::kMostDurationNs + 1), absl::StatusCode::kInvalidArgument},
      {AskFor(1, 2 * kHeapBytes), absl::StatusCode::kResourceExhausted},
      {{Ask::kRenew, 1, {}}, absl::StatusCode::kNotFound},
      {{Ask::kFree, 1, {}}, absl::StatusCode::kOk},
  };
  for (const auto& [ask, code] : kAsks) EXPECT_EQ(Call(client, ask).code, static_cast<int>(code));
  EXPECT_TRUE(HasOnly({}));
  EXPECT_TRUE(errors.empty());
}

TEST_F(LeasesTest, shouldLimitLeasesToWhatTheStateHasRoomFor) {
  ASSERT_NO_FATAL_FAILURE(StartService(/*state_bytes=*/256));
  Client* const client = AddClient();
  std::vector<Lease> leases;
  for (uint64_t i = 0; i < 3; ++i) leases.push_back(Allocate(client, i, 64));
  EXPECT_EQ(Call(client, AskFor(3, 64)).code,
            static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(HasOnly(leases));
  Free(client, leases[0]);
  leases[0] = Allocate(client, 3, 64);
  EXPECT_TRUE(HasOnly(leases));
  // The application's own limit is lower.
  Connection* const connection = OnlyConnection();
  ASSERT_NE(connection, nullptr);
  auto limited = Leases::Load(*connection, {}, /*most=*/1);
  ASSERT_TRUE(limited.ok());
  EXPECT_TRUE(limited->Allocate({1, 64, kAll, 0}, now).ok());
  EXPECT_EQ(limited->Allocate({2, 64, kAll, 0}, now).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(limited->bytes(), 64u);
  EXPECT_EQ(limited->FreeAll(), absl::OkStatus());
}

TEST_F(LeasesTest, shouldAllocateNothingWhenTheGrantsAreUsedUp) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  Client* const client = AddClient();
  std::vector<uint32_t> grants;
  for (uint32_t i = 0; i < arena::kGrants; ++i) {
    const auto grant = Owned()->worker().GrantRemoteAccess(0, 64, verbs::kRemoteRead);
    ASSERT_TRUE(grant.ok()) << grant.status();
    grants.push_back(grant->id);
  }
  EXPECT_EQ(Call(client, AskFor(1, 64)).code,
            static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(Statistics().kept, 0u);
  for (const uint32_t grant : grants) {
    EXPECT_EQ(Owned()->worker().RevokeGrant(grant), absl::OkStatus());
  }
  const Lease lease = Allocate(client, 1, 64);
  EXPECT_TRUE(HasOnly({lease}));
}

// A peer could read other peers' bytes otherwise.
TEST_F(LeasesTest, shouldClearTheMemoryOfALease) {
  constexpr uint32_t kMost = 768 << 10, kBytes = 512 << 10;
  static_assert(kMost + kBytes > kHeapBytes);  // they overlap
  ASSERT_NO_FATAL_FAILURE(StartService());
  Client* const client = AddClient();
  Heap& heap = Owned()->heap();
  const auto before = heap.AllocateScratch(kMost);
  ASSERT_TRUE(before.ok()) << before.status();
  std::fill_n(heap.At(*before), kMost, uint8_t{'x'});
  ASSERT_EQ(heap.Free(*before), absl::OkStatus());
  const Lease lease = Allocate(client, 1, kBytes);
  const uint8_t* const begin = Owned()->heap().At(lease.memory());
  EXPECT_EQ(std::count(begin, begin + kBytes, uint8_t{0}), kBytes);
}

TEST_F(LeasesTest, shouldFreeLeasesWhoseTimeIsOver) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  Client* const client = AddClient();
  const Lease forever = Allocate(client, 1, 64);
  const Lease two = Allocate(client, 2, 64, kAll, 2 * kSecond);
  const Lease three = Allocate(client, 3, 64, kAll, 3 * kSecond);
  EXPECT_EQ(forever.ends_ns, 0u);
  EXPECT_EQ(two.ends_ns, now + 2 * kSecond);
  const auto leases = Leases::Load(*OnlyConnection(), OnlyConnection()->state());
  ASSERT_TRUE(leases.ok()) << leases.status();
  EXPECT_EQ(leases->next_end(), two.ends_ns);
  EXPECT_EQ(leases->bytes(), 192u);
  now = two.ends_ns - 1;
  ASSERT_NO_FATAL_FAILURE(Expire());
  EXPECT_TRUE(HasOnly({forever, two, three}));
  ++now;
  ASSERT_NO_FATAL_FAILURE(Expire());
  EXPECT_TRUE(HasOnly({forever, three}));
  now = three.ends_ns;
  // It is over before the timer is there.
  EXPECT_EQ(Call(client, {Ask::kRenew, three.id, {0, 0, 0, kSecond}}).code,
            static_cast<int>(absl::StatusCode::kNotFound));
  const Lease again = Allocate(client, 3, 64, kAll, 3 * kSecond);
  EXPECT_NE(again.id, three.id);
  EXPECT_TRUE(HasOnly({forever, again}));
  std::string bytes(8, '?');
  EXPECT_EQ(Use(client, two, Opcode::kRead, 0, &bytes), CompletionStatus::kRemoteAccessError);
  Leave(client);
  EXPECT_TRUE(HasOnly({}));
  EXPECT_TRUE(errors.empty());
}

TEST_F(LeasesTest, shouldRenewLeases) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  Client* const client = AddClient();
  const Lease lease = Allocate(client, 1, 64, kAll, kSecond);
  now += kSecond / 2;
  const Answer longer = Call(client, {Ask::kRenew, lease.id, {0, 0, 0, kSecond}});
  EXPECT_EQ(longer.lease.ends_ns, now + kSecond);
  EXPECT_EQ(longer.lease.rkey, lease.rkey);
  now = lease.ends_ns;
  ASSERT_NO_FATAL_FAILURE(Expire());
  EXPECT_TRUE(HasOnly({lease}));
  // A repeated request finds it, though it ends at another time.
  EXPECT_EQ(Allocate(client, 1, 64, kAll, kSecond).id, lease.id);
  EXPECT_EQ(Call(client, {Ask::kRenew, lease.id, {}}).lease.ends_ns, 0u);
  now += 1000 * kSecond;
  ASSERT_NO_FATAL_FAILURE(Expire());
  Write(client, lease, 0, "still mine");
  EXPECT_TRUE(HasOnly({lease}));
}

TEST_F(LeasesTest, shouldFreeTheLeasesOfAPeerThatLeaves) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const Heap::Statistics before = Statistics();
  Client* const stays = AddClient();
  const Lease kept = Allocate(stays, 1, 64);
  Client* const leaves = AddClient();
  for (uint64_t i = 0; i < Leases::kMostLeases; ++i) Allocate(leaves, i, 64 + 100 * i);
  Leave(leaves);
  EXPECT_TRUE(HasOnly({kept}));
  Client* const vanishes = AddClient();
  Allocate(vanishes, 1, 4096);
  vanishes->raw.Vanish();
  EXPECT_TRUE(HasOnly({kept}));
  Leave(stays);
  ASSERT_NO_FATAL_FAILURE(ExpectAllFree(before));
  EXPECT_TRUE(errors.empty());
}

TEST_F(LeasesTest, shouldKeepKeysAndAddressesInHandoffs) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  Client* const client = AddClient();
  const Lease lease = Allocate(client, 1, 64);
  for (uint64_t round = 0; round < 6; ++round) {
    Worker* const to = &Owned()->worker() == workers[0].get() ? workers[1].get() : workers[0].get();
    ASSERT_EQ(Handoff(*to), absl::OkStatus());
    ASSERT_TRUE(Await([&] { return Owned() != nullptr; }));
    EXPECT_EQ(FetchAdd(client, lease, 0, 1), round);
    EXPECT_EQ(BytesOf(Allocate(client, 1, 64)), BytesOf(lease));
  }
  Free(client, lease);
  EXPECT_TRUE(HasOnly({}));
  EXPECT_TRUE(errors.empty());
}

// At each step of each request, and of the peer's end.
TEST_F(LeasesTest, shouldAccountForEveryByteWhenOwnersDie) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const Heap::Statistics before = Statistics();
  for (int i = kBegin; i < kSteps; ++i) {
    SCOPED_TRACE(i);
    const auto step = static_cast<Step>(i);
    Client* const client = AddClient();
    const Lease stays = Allocate(client, 1, 64);
    EXPECT_EQ(FetchAdd(client, stays, 0, 1), 0u);
    Arm(step);
    const Lease lease = Allocate(client, 2, 5000);
    EXPECT_EQ(deaths, 0);
    EXPECT_TRUE(HasOnly({stays, lease}));
    Write(client, lease, 4096, "here");
    if (step != kHalf) Arm(step);  // renewing calls nobody
    EXPECT_EQ(Call(client, {Ask::kRenew, lease.id, {0, 0, 0, kSecond}}).code, 0);
    EXPECT_EQ(deaths, 0);
    EXPECT_EQ(Read(client, lease, 4096, 4), "here");
    Arm(step);
    Free(client, lease);
    EXPECT_EQ(deaths, 0);
    EXPECT_TRUE(HasOnly({stays}));
    EXPECT_EQ(FetchAdd(client, stays, 0, 1), 1u);
    const Lease other = Allocate(client, 3, 64, kAll, kSecond);
    EXPECT_NE(other.id, lease.id);
    Arm(step);
    Leave(client);
    EXPECT_TRUE(HasOnly({}));
    deaths = 0;  // the end has no answer and no state
  }
  EXPECT_GE(dead.size(), 3u * kSteps);
  ASSERT_NO_FATAL_FAILURE(ExpectAllFree(before));
  EXPECT_TRUE(errors.empty());
}

TEST_F(LeasesTest, shouldFreeOverdueLeasesOfADeadOwner) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  Client* const client = AddClient();
  const Lease stays = Allocate(client, 1, 64);
  Allocate(client, 2, 64, kAll, kSecond);
  now += kSecond;
  // It has revoked the lease, and not committed that it is free.
  ASSERT_NO_FATAL_FAILURE(Expire(/*ends=*/true));
  EXPECT_TRUE(HasOnly({stays}));
  EXPECT_EQ(FetchAdd(client, stays, 0, 1), 0u);
  EXPECT_TRUE(errors.empty());
}

TEST_F(LeasesTest, shouldFreeTheLeasesOfAPoisonedConnection) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const Heap::Statistics before = Statistics();
  Client* const good = AddClient();
  const Lease kept = Allocate(good, 1, 64);
  Client* const bad = AddClient();
  Allocate(bad, 1, 64);
  // Each successor is given the peer's end. No one is told in the end.
  Arm(kDone, 3);
  Leave(bad);
  EXPECT_TRUE(HasOnly({kept}));
  EXPECT_EQ(dead.size(), 3u);
  EXPECT_EQ(FetchAdd(good, kept, 0, 1), 0u);
  Leave(good);
  ASSERT_NO_FATAL_FAILURE(ExpectAllFree(before));
  EXPECT_TRUE(errors.empty());
}

TEST_F(LeasesTest, shouldFreeAgainAfterAnAbandonedTransaction) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  Client* const client = AddClient();
  const Lease lease = Allocate(client, 1, 64);
  Connection* const connection = OnlyConnection();
  ASSERT_NE(connection, nullptr);
  Shard& shard = connection->shard();
  auto leases = Leases::Load(*connection, connection->state());
  ASSERT_TRUE(leases.ok());
  ASSERT_TRUE(leases->Allocate({2, 64, kAll, 0}, now).ok());
  EXPECT_EQ(leases->Free(lease.id), absl::OkStatus());
  shard.Abandon();
  EXPECT_EQ(HeapGrants::RevokeLost(shard), absl::OkStatus());
  EXPECT_TRUE(Granted().empty());
  Free(client, lease);
  EXPECT_TRUE(HasOnly({}));
}

// A lease without access is no lease that a peer is told of.
TEST_F(LeasesTest, shouldTreatALeaseThatIsRevokedAndNotFreedAsOver) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  Client* const client = AddClient();
  const Lease lease = Allocate(client, 1, 64);
  Connection* const connection = OnlyConnection();
  ASSERT_NE(connection, nullptr);
  auto leases = Leases::Load(*connection, connection->state());
  ASSERT_TRUE(leases.ok());
  // The heap refuses to free what is free.
  ASSERT_EQ(connection->shard().heap().Free(lease.memory()), absl::OkStatus());
  EXPECT_EQ(leases->Free(lease.id).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(leases->Find(lease.id), nullptr);
  EXPECT_EQ(leases->Renew(lease.id, 0, now).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(leases->next_end().has_value());
  EXPECT_LE(*leases->next_end(), now);
  connection->shard().Abandon();
  EXPECT_EQ(leases->FreeOverdue(now), absl::OkStatus());
  EXPECT_TRUE(leases->all().empty());
  ASSERT_EQ(connection->shard().SetState(*connection, leases->state(), kLeasesFormat),
            absl::OkStatus());
  ASSERT_EQ(connection->shard().Commit(), absl::OkStatus());
  EXPECT_TRUE(HasOnly({}));
}

// Until its end the driver does nothing, so that the keeper answers nothing.
class Standstill {
 public:
  explicit Standstill(driver_process::Engine& engine) {
    engine.Post([ended = ended_.get_future().share()] { ended.wait(); });
  }
  ~Standstill() { ended_.set_value(); }

 private:
  std::promise<void> ended_;
};

// A peer could write into what its next user has there.
TEST_F(LeasesTest, shouldGiveNobodyMemoryThatMayStillBeGranted) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const Heap::Statistics before = Statistics();
  Shard& shard = *Owned();
  auto& worker = static_cast<WorkerImpl&>(shard.worker());
  const auto allocate = [&] {
    return HeapGrants::Allocate(shard, 4096, Leases::kAlignment, kAll).status().code();
  };
  {
    const Standstill standstill(keeper.engine());
    worker.SetReplyTimeout(0);
    EXPECT_EQ(allocate(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(allocate(), absl::StatusCode::kUnavailable);
    shard.Abandon();
    EXPECT_EQ(shard.heap().AllocateScratch(before.largest_free).status().code(),
              absl::StatusCode::kResourceExhausted);
    worker.SetReplyTimeout(KeeperSession::kReplyTimeoutMs);
  }
  // The grant is made, and revoked because nobody has it.
  EXPECT_TRUE(Await([&] { return shard.heap().AllocateScratch(before.largest_free).ok(); }));
  EXPECT_TRUE(Granted().empty());
}

TEST_F(LeasesTest, shouldRevokeWhatCouldNotBeRevokedOnceTheKeeperAnswers) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  Client* const client = AddClient();
  for (uint64_t request = 1; request <= 5; ++request) Allocate(client, request, 64);
  Connection* const connection = OnlyConnection();
  ASSERT_NE(connection, nullptr);
  auto leases = Leases::Load(*connection, connection->state());
  ASSERT_TRUE(leases.ok());
  auto& worker = static_cast<WorkerImpl&>(connection->shard().worker());
  {
    const Standstill standstill(keeper.engine());
    worker.SetReplyTimeout(0);
    EXPECT_EQ(leases->FreeAll(), absl::OkStatus());
    EXPECT_EQ(Granted().size(), 5u);
    worker.SetReplyTimeout(KeeperSession::kReplyTimeoutMs);
  }
  ASSERT_EQ(connection->shard().SetState(*connection, leases->state(), kLeasesFormat),
            absl::OkStatus());
  ASSERT_EQ(connection->shard().Commit(), absl::OkStatus());
  EXPECT_TRUE(HasOnly({}));
}

class LeasesStateTest : public LeasesTest {
 protected:
  // The state of two leases, byte for byte.
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartService());
    AddClient();
    connection = OnlyConnection();
    ASSERT_NE(connection, nullptr);
    // Where the heap is, which depends on the shape.
    const auto somewhere = connection->shard().heap().AllocateScratch(4096);
    ASSERT_TRUE(somewhere.ok()) << somewhere.status();
    heap = somewhere->offset;
    ASSERT_EQ(connection->shard().heap().Free(*somewhere), absl::OkStatus());
    const std::string bytes = absl::HexStringToBytes(
        "4c454153010002000900000000000000"    // two leases, the last id 9
        "07000000000000000000000000000000"    // request 7, offset: below
        "01020300000000000000000000000000"    // address, no end
        "00000000000000000900000004010000"    // no duration, id 9, 260 bytes
        "06000000050000000102000000000000"    // READ and WRITE, grant 5, rkey
        "08000000000000000000000000000000"    // the other one
        "00000000000000000201000000000000"    // its end
        "03000000000000000800000008000000"    // its duration
        "0e000000060000000103000000000000");  // all access
    state.assign(bytes.begin(), bytes.end());
    Put(24, heap);
    Put(88, heap + 512);
  }
  void Put(size_t at, uint64_t value) { std::memcpy(&state[at], &value, sizeof(value)); }
  absl::StatusCode CodeOf(const std::vector<uint8_t>& bytes) {
    return Leases::Load(*connection, bytes).status().code();
  }

  Connection* connection = nullptr;
  uint64_t heap = 0;
  std::vector<uint8_t> state;
};

TEST_F(LeasesStateTest, shouldHaveTheBytesOfItsVersion) {
  const auto loaded = Leases::Load(*connection, state);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_EQ(loaded->all().size(), 2u);
  const Lease* const lease = loaded->Find(9);
  ASSERT_NE(lease, nullptr);
  EXPECT_EQ(lease->request, 7u);
  EXPECT_EQ(lease->memory().offset, heap);
  EXPECT_EQ(lease->memory().length, 260u);
  EXPECT_EQ(lease->remote_address, 0x30201u);
  EXPECT_EQ(lease->ends_ns, 0u);
  EXPECT_EQ(lease->access, uint32_t{verbs::kRemoteRead | verbs::kRemoteWrite});
  EXPECT_EQ(lease->grant, 5u);
  EXPECT_EQ(lease->rkey, 0x201u);
  const Lease* const other = loaded->Find(8);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(other->ends_ns, 0x102u);
  EXPECT_EQ(other->duration_ns, 3u);
  EXPECT_EQ(other->access, kAll);
  EXPECT_EQ(loaded->next_end(), 0x102u);
  EXPECT_TRUE(
      std::equal(state.begin(), state.end(), loaded->state().begin(), loaded->state().end()));
}

TEST_F(LeasesStateTest, shouldRefuseAStateThatItCannotHaveWritten) {
  const auto empty = Leases::Load(*connection, {});
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->all().empty());
  EXPECT_EQ(empty->state().size(), Leases::BytesFor(0));
  EXPECT_FALSE(empty->next_end().has_value());
  // The rest is the application's.
  std::vector<uint8_t> longer = state;
  longer.push_back(1);
  EXPECT_EQ(CodeOf(longer), absl::StatusCode::kOk);
  for (size_t length = 1; length < state.size(); ++length) {
    EXPECT_EQ(CodeOf({state.begin(), state.begin() + static_cast<ptrdiff_t>(length)}),
              absl::StatusCode::kDataLoss)
        << length;
  }
  const struct {
    size_t at;
    std::vector<uint8_t> values;
  } kWrong[] = {
      {0, {'l'}},    // magic
      {4, {2}},      // version
      {6, {3}},      // more leases than there are
      {6, {65}},     // and than there can be
      {12, {1}},     // reserved
      {16, {8}},     // the second's request
      {31, {1}},     // not in the heap
      {55, {0xff}},  // too long a duration
      {56, {8}},     // the second's id
      {56, {0}},     // no id
      {60, {0, 0}},  // no bytes
      {63, {0xff}},  // more bytes than the heap has
      {64, {0}},     // no access
      {64, {1}},     // local access
      {64, {16}},    // unknown access
      {69, {1}},     // grant 261
      {76, {1}},     // reserved
  };
  for (const auto& wrong : kWrong) {
    std::vector<uint8_t> bytes = state;
    std::copy(wrong.values.begin(), wrong.values.end(),
              bytes.begin() + static_cast<ptrdiff_t>(wrong.at));
    EXPECT_EQ(CodeOf(bytes), absl::StatusCode::kDataLoss) << wrong.at;
  }
  Put(24, heap + 512);  // the second's memory
  EXPECT_EQ(CodeOf(state), absl::StatusCode::kDataLoss);
}

TEST_F(LeasesStateTest, shouldNotGiveIdsTwiceWhenTheyBeginAgain) {
  state[8] = state[9] = state[10] = state[11] = 0xff;  // the last id
  state[56] = 1;                                       // the first lease has the first
  auto leases = Leases::Load(*connection, state);
  ASSERT_TRUE(leases.ok()) << leases.status();
  const auto lease = leases->Allocate({1, 64, kAll, 0}, 0);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(lease->id, 2u);
  EXPECT_EQ(leases->Free(lease->id), absl::OkStatus());
}

// ---------------------------------------------------------------- at random

// Peers that know what their memory has to hold.
class LeasesAtRandomTest : public LeasesTest {
 protected:
  struct Held {
    Lease lease;
    std::string bytes;
  };
  struct Holder {
    Client* client = nullptr;
    uint64_t requests = 0;
    std::map<uint32_t, Held> leases;  // by id
  };
  static constexpr size_t kHolders = 3;
  static constexpr size_t kMostOfHolder = 6;

  uint64_t Below(uint64_t end) { return random() % end; }
  // The owner dies at the next step of this kind, once, or now.
  void KillAtRandom() {
    const auto step = static_cast<Step>(Below(kSteps + 1));
    if (step == kSteps) {
      ASSERT_TRUE(Await([&] { return Owned() != nullptr; }));
      return Die(*Owned());
    }
    Arm(step);
  }
  void AllocateAtRandom(Holder& holder) {
    if (holder.leases.size() >= kMostOfHolder) return FreeAtRandom(holder);
    const uint64_t bytes = 8 * (1 + Below(Below(2) == 0 ? 16 : 1500));
    const uint64_t duration = Below(2) * (1 + Below(10)) * kSecond;
    const uint64_t request = ++holder.requests;
    const Lease lease = Allocate(holder.client, request, bytes, kAll, duration);
    ASSERT_NE(lease.id, 0u);
    if (Below(4) == 0) {
      const Lease again = Allocate(holder.client, request, bytes, kAll, duration);
      EXPECT_EQ(BytesOf(again), BytesOf(lease));
    }
    const bool is_new = holder.leases.emplace(lease.id, Held{lease, std::string(bytes, 0)}).second;
    EXPECT_TRUE(is_new);
  }
  void FreeAtRandom(Holder& holder) {
    if (holder.leases.empty()) return;
    const auto held = AnyOf(holder);
    Free(holder.client, held->second.lease);
    holder.leases.erase(held);
  }
  void RenewAtRandom(Holder& holder) {
    if (holder.leases.empty()) return;
    Held& held = AnyOf(holder)->second;
    const uint64_t duration = (1 + Below(10)) * kSecond;
    const Answer answer = Call(holder.client, {Ask::kRenew, held.lease.id, {0, 0, 0, duration}});
    EXPECT_EQ(answer.code, 0);
    EXPECT_EQ(answer.lease.ends_ns, now + duration);
    held.lease.ends_ns = now + duration;
  }
  void UseAtRandom(Holder& holder) {
    if (holder.leases.empty()) return;
    Held& held = AnyOf(holder)->second;
    const uint64_t offset = 8 * Below(held.bytes.size() / 8);
    const uint64_t value = random();
    uint64_t before = 0;
    std::memcpy(&before, &held.bytes[offset], 8);
    switch (Below(3)) {
      case 0: {
        const uint64_t length = 1 + Below(std::min<uint64_t>(1024, held.bytes.size() - offset));
        std::string bytes(length, static_cast<char>(value));
        held.bytes.replace(offset, length, bytes);
        return Write(holder.client, held.lease, offset, std::move(bytes));
      }
      case 1:
        EXPECT_EQ(FetchAdd(holder.client, held.lease, offset, value), before);
        before += value;
        break;
      default:
        EXPECT_EQ(CompareSwap(holder.client, held.lease, offset, before, value), before);
        before = value;
    }
    std::memcpy(&held.bytes[offset], &before, 8);
  }
  void PassTime() {
    now += Below(3 * kSecond);
    ASSERT_TRUE(Await([&] { return Owned() != nullptr; }));
    Expire(/*ends=*/Below(3) == 0);
    for (Holder& holder : holders) {
      std::erase_if(holder.leases, [&](const auto& item) {
        const uint64_t end = item.second.lease.ends_ns;
        return end != 0 && end <= now;
      });
    }
  }
  void LeaveAtRandom(Holder& holder) {
    Leave(holder.client);
    holder = {AddClient(), 0, {}};
  }
  std::map<uint32_t, Held>::iterator AnyOf(Holder& holder) {
    return std::next(holder.leases.begin(), static_cast<ptrdiff_t>(Below(holder.leases.size())));
  }
  void ExpectAllHeld() {
    std::vector<Lease> leases;
    for (const Holder& holder : holders) {
      EXPECT_FALSE(holder.client->ended());
      for (const auto& [id, held] : holder.leases) leases.push_back(held.lease);
    }
    ASSERT_TRUE(HasOnly(leases));
    for (const Holder& holder : holders) {
      for (const auto& [id, held] : holder.leases) {
        const uint8_t* const memory = Owned()->heap().At(held.lease.memory());
        EXPECT_EQ(std::memcmp(memory, held.bytes.data(), held.bytes.size()), 0) << "lease " << id;
      }
    }
  }
  void DoAtRandom(Holder& holder) {
    switch (Below(12)) {
      case 0:
      case 1:
      case 2:
        return AllocateAtRandom(holder);
      case 3:
      case 4:
        return FreeAtRandom(holder);
      case 5:
        return RenewAtRandom(holder);
      case 6:
        return PassTime();
      case 7:
        return LeaveAtRandom(holder);
      default:
        return UseAtRandom(holder);
    }
  }

  std::mt19937_64 random;
  std::vector<Holder> holders;
};

// BATON_KILLS: how many owners die (60); BATON_SEED: of all that is random (printed).
TEST_F(LeasesAtRandomTest, shouldLoseAndLeakNothing) {
  const uint64_t kills = harness::Setting("BATON_KILLS", 60);
  const uint64_t seed = harness::Setting("BATON_SEED", std::random_device{}());
  SCOPED_TRACE(seed);
  std::printf("%llu kills, BATON_SEED=%llu\n", static_cast<unsigned long long>(kills),
              static_cast<unsigned long long>(seed));
  random.seed(seed);
  ASSERT_NO_FATAL_FAILURE(StartService());
  const Heap::Statistics before = Statistics();
  for (size_t i = 0; i < kHolders; ++i) holders.push_back({AddClient(), 0, {}});
  while (dead.size() < kills) {
    if (deaths == 0 && Below(3) == 0) ASSERT_NO_FATAL_FAILURE(KillAtRandom());
    ASSERT_NO_FATAL_FAILURE(DoAtRandom(holders[Below(kHolders)]));
    ASSERT_NO_FATAL_FAILURE(ExpectAllHeld());
    ASSERT_FALSE(HasFailure());
  }
  deaths = 0;
  for (const Holder& holder : holders) Leave(holder.client);
  ASSERT_NO_FATAL_FAILURE(ExpectAllFree(before));
  EXPECT_TRUE(errors.empty());
}

}  // namespace
}  // namespace baton
