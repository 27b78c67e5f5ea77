#include "supervisor/nic_check/checked_device.h"

#include <sched.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"

namespace baton::nic_check {
namespace {

constexpr size_t kWordBytes = 64 << 10;
constexpr size_t kPage = 4096;

uint64_t Load(const uint64_t* word) {
  return std::atomic_ref(*const_cast<uint64_t*>(word)).load(std::memory_order_acquire);
}

// libibverbs would keep registered memory from forked processes, and libmlx5 sign requests.
absl::Status CheckEnvironment() {
  if (ibv_is_fork_initialized() == IBV_FORK_ENABLED) {
    return absl::FailedPreconditionError(
        "libibverbs keeps registered memory from forked processes: unset RDMAV_FORK_SAFE and "
        "IBV_FORK_SAFE");
  }
  if (std::getenv("MLX5_QP_SIGNATURE") == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError("MLX5_QP_SIGNATURE is set, and Baton signs no requests");
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckedDevice>> CheckedDevice::Make(ibv_context* context,
                                                                   const Options& options,
                                                                   SharedMemory* shared) {
  BATON_RETURN_IF_ERROR(CheckEnvironment());
  auto made = std::unique_ptr<CheckedDevice>(new CheckedDevice(context, options, shared));
  BATON_ASSIGN_OR_RETURN(made->address_,
                         FindLoopbackAddress(context, options.port, options.gid_index));
  BATON_ASSIGN_OR_RETURN(made->domain_, made->MakeDomain());
  made->words_ = static_cast<uint64_t*>(shared->Allocate(kWordBytes, kPage));
  if (made->words_ == nullptr) return absl::ResourceExhaustedError("no shared memory is left");
  made->region_ = ibv_reg_mr(made->domain_->for_regions(), made->words_, kWordBytes, kAllAccess);
  if (made->region_ == nullptr) return ErrnoStatus(errno, "ibv_reg_mr (see RLIMIT_MEMLOCK)");
  made->before_ = made->SgeOf(made->words_, sizeof(uint64_t));
  BATON_ASSIGN_OR_RETURN(const Ends ends, made->Connect(*made->domain_));
  Driver driver(*ends.first);
  BATON_RETURN_IF_ERROR(made->AddOnceMore(&driver, 0, made->NewWord()));
  return made;
}

CheckedDevice::~CheckedDevice() {
  if (region_ != nullptr) ibv_dereg_mr(region_);
}

absl::StatusOr<std::unique_ptr<verbs::mlx5::LibraryDomain>> CheckedDevice::MakeDomain() {
  return verbs::mlx5::LibraryDomain::Make(context_, [this](size_t bytes, size_t alignment) {
    return shared_->Allocate(bytes, alignment);
  });
}

absl::StatusOr<Ends> CheckedDevice::Connect(const verbs::mlx5::LibraryDomain& domain,
                                            ibv_comp_channel* channel) {
  using verbs::mlx5::LibraryQueuePair;
  verbs::mlx5::LibraryQueuePairOptions options;
  options.send_requests = options.receive_requests = kRequests;
  options.limits = kLimits;
  options.entries = kEntries;
  Ends ends;
  BATON_ASSIGN_OR_RETURN(ends.second, LibraryQueuePair::Make(domain, options));
  options.channel = channel;
  BATON_ASSIGN_OR_RETURN(ends.first, LibraryQueuePair::Make(domain, options));
  BATON_RETURN_IF_ERROR(Connect(ends));
  return ends;
}

absl::Status CheckedDevice::Connect(const Ends& ends) {
  BATON_RETURN_IF_ERROR(ConnectTo(address_, ends.second->number(), ends.first->get()));
  return ConnectTo(address_, ends.first->number(), ends.second->get());
}

// The region's domain is that of the first domain's queue pairs; others have domains of their own.
verbs::SendRequest CheckedDevice::AddOne(uint64_t wr_id, const uint64_t* word) const {
  verbs::SendRequest request;
  request.opcode = verbs::Opcode::kFetchAndAdd;
  request.wr_id = wr_id;
  request.compare_add = 1;
  request.remote_address = reinterpret_cast<uintptr_t>(word);
  request.rkey = region_->rkey;
  request.sges = {&before_, 1};
  return request;
}

absl::Status CheckedDevice::Post(Driver* driver, const verbs::SendRequest& request) const {
  size_t posted = 0;
  return driver->sends().Post({&request, 1}, &posted);
}

bool CheckedDevice::Eventually(const std::function<bool()>& done) const {
  const uint64_t deadline =
      MonotonicNanoseconds() +
      static_cast<uint64_t>(std::chrono::nanoseconds(options_.patience).count());
  for (; !done(); sched_yield()) {
    if (MonotonicNanoseconds() > deadline) return false;
  }
  return true;
}

absl::StatusOr<verbs::Completion> CheckedDevice::Next(Driver* driver) const {
  verbs::Completion completion;
  absl::StatusOr<int> count = 0;
  const bool came = Eventually([&] {
    count = driver->completions().Take({&completion, 1});
    return !count.ok() || *count == 1;
  });
  BATON_RETURN_IF_ERROR(count.status());
  if (came) return completion;
  return absl::DeadlineExceededError(
      absl::StrCat("no completion within ", options_.patience.count(), " ms"));
}

absl::Status CheckedDevice::AddOnceMore(Driver* driver, uint64_t wr_id,
                                        const uint64_t* word) const {
  const uint64_t before = Load(word);
  BATON_RETURN_IF_ERROR(Post(driver, AddOne(wr_id, word)));
  BATON_ASSIGN_OR_RETURN(const verbs::Completion completion, Next(driver));
  if (completion.wr_id != wr_id || completion.status != verbs::CompletionStatus::kSuccess) {
    return absl::InternalError(absl::StrCat("request ", wr_id, " was posted, and ",
                                            completion.wr_id, " completed with status ",
                                            static_cast<int>(completion.status)));
  }
  if (Load(word) == before + 1) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("request ", wr_id, " was executed ", Load(word) - before, " times"));
}

}  // namespace baton::nic_check
