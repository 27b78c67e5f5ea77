#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "lib/base/check.h"
#include "lib/driver/device_objects.h"
#include "tests/fuzz/brokered_service.h"
#include "tests/fuzz/hostile_writes.h"
#include "tests/fuzz/program.h"
#include "tests/fuzz/shared_reads.h"
#include "tests/lib/driver/commit_writer.h"
#include "worker/heap_blocks.h"

namespace baton::fuzz {
namespace {

using arena::ConnectionState;
using driver::CommitOutcome;
using driver::testing::CommitWriter;
using driver::testing::TestShape;

constexpr uint32_t kShards = 2, kConnections = 4, kDepth = 4;
constexpr int kMaxSteps = 400;
constexpr uint64_t kSuccessor = 1 << 20;

ConnectionState StateOf(const arena::ConnectionRecord& record) {
  return ConnectionState(record.state);
}

class Attack {
 public:
  Attack(BrokeredService* service, BrokeredService* beside, HonestWorker* neighbour,
         Program* program)
      : service_(*service),
        beside_(*beside),
        neighbour_(*neighbour),
        program_(*program),
        writes_(service->arena()) {
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      writers_[shard].emplace(&service->arena(), shard);
    }
  }

  void Run() {
    // One worker owns both shards, or each has its own.
    const uint8_t how = program_.Byte();
    for (uint32_t shard = 0; shard < kShards; ++shard) Begin(shard, (how & 1) ? 0 : shard);
    if (how & 6) Establish(how >> 3 & 3);
    for (int step = 0; step < kMaxSteps && !program_.empty(); ++step) {
      Step();
      service_.Check();
    }
    SharedReads::Interfere({});
    service_.device().meanwhile = nullptr;
    service_.device().refuse_queue_pairs = false;
    GoOnHonestly();
    for (uint32_t shard = 0; shard < kShards; ++shard) LoadHeap(shard);
  }

 private:
  void Begin(uint32_t shard, uint32_t slot) {
    if (ids_[slot] == 0) ids_[slot] = ++last_id_;
    if (!service_.GiveShard(shard, slot, ids_[slot])) return;
    writers_[shard]->Begin(service_.ownership(shard).epoch());
  }

  void Apply(uint32_t shard) {
    driver::Ownership& ownership = service_.ownership(shard);
    if (!ownership.owned()) return;
    const CommitOutcome outcome = service_.Apply(shard);
    if (outcome == CommitOutcome::kInvalid) Fence(ownership.owner_slot());
    if (outcome != CommitOutcome::kReleased) return;
    service_.EndOwnership(shard, /*released=*/true);
    Begin(shard, program_.Below(2));
  }

  void ApplyAll(uint32_t shard) {
    for (int i = 0; i < 8 && service_.driver().PendingEntries(shard) > 0; ++i) Apply(shard);
  }

  // Begins where it becomes interesting: all connections are there.
  void Establish(uint32_t exchanges) {
    MemoryDevice& device = service_.device();
    for (uint32_t i = 0; i < kConnections; ++i) device.RequestConnection("hello");
    service_.HandleEvents();
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      HostileCommits(&service_.arena(), &*writers_[shard], shard).Welcome();
      writers_[shard]->Publish();
      Apply(shard);
    }
    const std::vector<MemoryConnection*> connections = device.connections();
    for (MemoryConnection* connection : connections) connection->Establish();
    service_.HandleEvents();
    for (; exchanges > 0; --exchanges) {
      for (uint32_t shard = 0; shard < kShards; ++shard) Exchange(shard);
    }
  }

  // Mostly the next worker comes soon; the old one may be dead by then, or not.
  void Fence(uint32_t slot) {
    Stop(slot);
    const uint8_t how = program_.Byte();
    if (how & 1) Die(slot);
    if (how & 6) {
      for (uint32_t shard = 0; shard < kShards; ++shard) Begin(shard, how >> 3 & 1);
    }
  }

  // All its shards have no owner until somebody is given them. Its process still writes.
  void Stop(uint32_t slot) {
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      if (service_.ownership(shard).owner_slot() == slot) {
        service_.EndOwnership(shard, /*released=*/false);
      }
    }
  }

  void Die(uint32_t slot) {
    Stop(slot);
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      service_.ownership(shard).ProveDead(ids_[slot]);
    }
    ids_[slot] = 0;
  }

  void Turn() {
    service_.HandleEvents();
    service_.Poll();
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      for (int i = 0; i < 8; ++i) Apply(shard);
    }
    neighbour_.Turn(&beside_);
  }

  // A transaction as a correct worker makes it; if not `well`, with something wrong in it.
  void Commit(uint32_t shard, bool well) {
    // It stages on what is applied; now and then on what is not.
    if (program_.Below(8) != 0) ApplyAll(shard);
    HostileCommits commits(&service_.arena(), &*writers_[shard], shard);
    commits.Stage(program_);
    for (uint32_t left = well ? 0 : 1 + program_.Below(3); left > 0; --left) {
      commits.Distort(program_);
    }
    writers_[shard]->Publish();
  }

  // Messages come and go, and the worker acknowledges nothing.
  void Exchange(uint32_t shard) {
    ApplyAll(shard);
    HostileCommits(&service_.arena(), &*writers_[shard], shard).Exchange();
    writers_[shard]->Publish();
    Apply(shard);
    const std::vector<MemoryQueuePair*> queue_pairs = service_.device().queue_pairs();
    for (MemoryQueuePair* queue_pair : queue_pairs) {
      while (queue_pair->CompleteSend(verbs::CompletionStatus::kSuccess)) {
      }
      while (queue_pair->Deliver("message")) {
      }
    }
    service_.Poll();
  }

  template <typename T>
  T* Pick(const std::vector<T*>& from) {
    return from.empty() ? nullptr : from[program_.Below(static_cast<uint32_t>(from.size()))];
  }

  void DeviceStep() {
    MemoryDevice& device = service_.device();
    MemoryConnection* connection = Pick(device.connections());
    MemoryQueuePair* queue_pair = Pick(device.queue_pairs());
    switch (program_.Below(9)) {
      case 0:
        if (device.connections().size() < 2 * kConnections) {
          device.RequestConnection(program_.Block(program_.Byte()));
        }
        break;
      case 1:
        if (connection != nullptr) connection->Establish();
        break;
      case 2:
        if (connection != nullptr) connection->End();
        break;
      case 3:
        if (connection != nullptr) connection->Refuse();
        break;
      case 4:
        if (queue_pair != nullptr) queue_pair->CompleteSend(verbs::CompletionStatus::kSuccess);
        break;
      case 5:
        if (queue_pair != nullptr) {
          queue_pair->CompleteSend(verbs::CompletionStatus(program_.Below(12)));
        }
        break;
      case 6:
        if (queue_pair != nullptr) queue_pair->Deliver(program_.Block(program_.Below(80)));
        break;
      case 7:
        if (queue_pair != nullptr) queue_pair->Flush();
        break;
      default:
        device.refuse_queue_pairs = program_.Flag();
    }
  }

  void KeeperStep() {
    driver::DeviceObjects* const objects = service_.driver().objects().get();
    switch (program_.Below(6)) {
      case 0:
        Stop(program_.Below(2));
        break;
      case 1:
        Die(program_.Below(2));
        break;
      case 2:
        Begin(program_.Below(kShards), program_.Below(2));
        break;
      case 3: {
        const uint32_t shard = program_.Below(kShards);
        const auto connected = service_.manager().Connect(
            shard, {"127.0.0.1", 9}, program_.Block(program_.Byte()), program_.Take<uint64_t>());
        if (connected.ok()) BATON_CHECK(*connected < kConnections);
        break;
      }
      case 4: {
        const uint64_t bytes = service_.arena().shape().buffer_bytes;
        const uint64_t offset = program_.Near(program_.Flag() ? bytes : 0);
        const auto granted = driver::ReserveGrant(service_.arena(), service_.device(), objects,
                                                  offset, program_.Near(bytes - offset), 15);
        if (!granted.ok()) break;
        BATON_CHECK(*granted < arena::kGrants);
        driver::RegisterGrant(service_.arena(), &service_.device(), objects, *granted)
            .IgnoreError();
        break;
      }
      default:
        driver::RevokeGrant(service_.arena(), objects,
                            static_cast<uint32_t>(program_.Near(objects->next_grant)))
            .IgnoreError();
    }
  }

  void Step() {
    const uint32_t shard = program_.Below(kShards);
    const uint64_t epoch = service_.ownership(shard).epoch();
    switch (program_.Below(15)) {
      case 0:
        writes_.Raw(program_);
        break;
      case 1:
        writes_.Entry(program_, shard, epoch);
        break;
      case 2:
        writes_.Tail(program_, shard, epoch);
        break;
      case 3:
        writes_.Request(program_);
        break;
      case 4:
        Apply(shard);
        break;
      case 5:
      case 6:
        Commit(shard, /*well=*/true);
        break;
      case 7:
        Commit(shard, /*well=*/false);
        if (program_.Below(4) != 0) Apply(shard);
        break;
      case 8:
      case 9:
        DeviceStep();
        break;
      case 10:
        KeeperStep();
        break;
      case 11:
        // Another thread of the worker writes while the driver reads.
        SharedReads::Interfere(Interference::Of(program_));
        break;
      case 12:
        for (uint32_t left = 1 + program_.Below(3); left > 0; --left) Exchange(shard);
        break;
      case 13: {
        // Or while it posts.
        int left = program_.Below(4);
        service_.device().meanwhile = [this, left]() mutable {
          if (left-- > 0) writes_.Raw(program_);
        };
        break;
      }
      default:
        Turn();
    }
  }

  // Whatever was written: once the attackers are dead, a correct successor can go on, end every
  // connection and acknowledge everything.
  void GoOnHonestly() {
    for (uint32_t slot = 0; slot < 2; ++slot) Die(slot);
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      if (service_.ownership(shard).owned()) service_.EndOwnership(shard, false);
      for (uint64_t id = 1; id <= last_id_; ++id) service_.ownership(shard).ProveDead(id);
      BATON_CHECK(service_.GiveShard(shard, 0, kSuccessor));
      writers_[shard]->Begin(service_.ownership(shard).epoch());
    }
    for (int turn = 0; turn < 8 || service_.manager().connection_count() > 0; ++turn) {
      BATON_CHECK(turn < 64);
      const std::vector<MemoryConnection*> connections = service_.device().connections();
      for (MemoryConnection* connection : connections) connection->End();
      for (MemoryQueuePair* queue_pair : service_.device().queue_pairs()) {
        while (queue_pair->Flush()) {
        }
      }
      service_.HandleEvents();
      service_.Poll();
      for (uint32_t shard = 0; shard < kShards; ++shard) FinishShard(shard);
      neighbour_.Turn(&beside_);
      service_.Check();
    }
  }

  // A successor can use the heap, or knows that it cannot.
  void LoadHeap(uint32_t shard) {
    HeapBlocks heap(service_.arena().shape().heap_pages);
    const auto in_use = [](HeapBlocks::VisitRange visit) { visit(100, arena::kPageBytes); };
    if (!heap.Load(service_.arena().heap(shard), in_use).ok()) return;
    std::vector<HeapBlocks::Object> kept;
    heap.ForEachTaken([&](const auto& object, HeapBlocks::State) { kept.push_back(object); });
    while (const auto object = heap.Take(arena::kHeapUnitBytes, 1, /*kept=*/true)) {
      kept.push_back(*object);
    }
    for (const HeapBlocks::Object& object : kept) {
      BATON_CHECK(object.offset + object.length <= heap.bytes());
      heap.BeginFree(object);
      heap.Hold(object);
    }
    heap.Reclaim([](HeapBlocks::VisitRange) {});
    BATON_CHECK(heap.Take(heap.bytes(), 1, /*kept=*/false).has_value());
  }

  void FinishShard(uint32_t shard) {
    CommitWriter& writer = *writers_[shard];
    for (uint32_t i = 0; i < kConnections; ++i) {
      const arena::ConnectionRecord& record = service_.record(i);
      if (record.shard == shard && StateOf(record) != ConnectionState::kFree) writer.Disconnect(i);
    }
    writer.Acknowledge(service_.arena().shard(shard).completion_tail);
    writer.Publish();
    BATON_CHECK(service_.Apply(shard) == CommitOutcome::kApplied);
    BATON_CHECK(service_.Apply(shard) == CommitOutcome::kIdle);
  }

  BrokeredService& service_;
  BrokeredService& beside_;
  HonestWorker& neighbour_;
  Program& program_;
  HostileWrites writes_;
  std::array<std::optional<CommitWriter>, kShards> writers_;
  std::array<uint64_t, 2> ids_ = {};
  uint64_t last_id_ = 0;
};

}  // namespace

void HostileWorker(const uint8_t* data, size_t size) {
  static arena::Arena attacked =
      arena::Arena::Create(ShapeWithHeaps(kShards, kConnections, kDepth), "attacked").value();
  static arena::Arena beside = arena::Arena::Create(TestShape(1, 2, kDepth), "beside").value();
  static BrokeredService neighbour(&beside);
  static const bool owned = neighbour.GiveShard(0, 0, 1);
  BATON_CHECK(owned);
  static HonestWorker honest(&beside, &neighbour.device(), 1, 2);
  Program program(data, size);
  BrokeredService service(&attacked);
  SharedReads::Watch(&attacked.worker(0),
                     attacked.worker_map().total - attacked.worker_map().workers);
  Attack(&service, &neighbour, &honest, &program).Run();
  SharedReads::Forget();
}

}  // namespace baton::fuzz
