#include "tests/bench/native_owner.h"

#include <unistd.h>

#include <utility>

#include "lib/arena/atomic_access.h"
#include "lib/base/status_macros.h"
#include "tests/bench/worker_parts.h"

namespace {
BatonNativeHost* g_host = nullptr;  // of the worker that is made next
}  // namespace

extern "C" BatonNativeHost* baton_native_host() { return g_host; }

namespace baton::bench {

absl::StatusOr<std::unique_ptr<NativeOwner>> NativeOwner::Start(
    std::unique_ptr<verbs::Device> device) {
  std::unique_ptr<NativeOwner> owner(new NativeOwner(std::move(device)));
  BATON_RETURN_IF_ERROR(owner->Open());
  BATON_RETURN_IF_ERROR(owner->AddWorker());
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, owner->engine_->Listen({"127.0.0.1", 0}));
  owner->port_ = address.port;
  return owner;
}

// The worker bids its keeper farewell, and waits for no answer where that is gone.
NativeOwner::~NativeOwner() { keeper_.Reset(); }

absl::Status NativeOwner::Open() {
  BATON_ASSIGN_OR_RETURN(arena::Arena arena, arena::Arena::Create(ShapeOfOne(1), "echo"));
  arena_.emplace(std::move(arena));
  BATON_ASSIGN_OR_RETURN(engine_,
                         driver_process::NativeEngine::Create(&*arena_, device_.get(), this, {}));
  return absl::OkStatus();
}

absl::Status NativeOwner::AddWorker() {
  driver_process::NativeInheritance inheritance = engine_->InheritanceOf(0, kEchoWorkerId);
  inheritance.watch_deaths = false;
  FileDescriptor session;
  BATON_RETURN_IF_ERROR(MakeStreams(&keeper_, &session));
  BATON_ASSIGN_OR_RETURN(driver_, driver_process::NativeDriver::Create(std::move(inheritance)));
  arena_->ClearWorker(0);
  arena::StoreRelease(arena_->worker(0).thread_locks[0].futex, static_cast<uint32_t>(getpid()));
  worker_ = std::make_unique<WorkerImpl>(EchoWorkerOptions(), &service_);
  g_host = driver_->host();
  BATON_RETURN_IF_ERROR(worker_->FindNativeHost());
  worker_->Connected(std::move(session));
  FileDescriptor wake, keepers_wake;
  BATON_RETURN_IF_ERROR(MakeStreams(&wake, &keepers_wake));
  BATON_ASSIGN_OR_RETURN(arena::Arena arena, AttachTo(*arena_));
  BATON_RETURN_IF_ERROR(worker_->Start(std::make_shared<const arena::Arena>(std::move(arena)),
                                       std::move(wake), kEchoWorkerId, 0));
  engine_->AddWorker(0, kEchoWorkerId, std::move(keepers_wake), {},
                     driver_process::Standing::kFirst);
  engine_->succession().SetReady(0);
  return absl::OkStatus();
}

absl::Status NativeOwner::Establish() {
  engine_->Turn();
  return worker_->Poll().status();
}

}  // namespace baton::bench
