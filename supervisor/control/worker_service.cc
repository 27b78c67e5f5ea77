#include "supervisor/control/worker_service.h"

#include <atomic>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/alarm.h"
#include "lib/base/random_bytes.h"
#include "lib/base/status.h"
#include "lib/log/log.h"
#include "lib/text/text.h"
#include "proto/baton/v1/worker.grpc.pb.h"
#include "spdlog/spdlog.h"
#include "supervisor/control/grpc_status.h"

namespace baton {
namespace {

constexpr uint64_t kRedeemNs = 5'000'000'000;
constexpr size_t kMaxHealthDetail = 256;
constexpr size_t kMaxReleaseBytes = 64;
constexpr size_t kMaxReasonBytes = 512;  // in a line of the log
// Notices that a worker has not taken yet. If there are more, the worker has stopped reading.
constexpr size_t kMaxQueuedNotices = 64;

absl::Status CheckHello(const v1::AttachRequest& request) {
  if (!request.has_hello()) {
    return absl::InvalidArgumentError("the first message of the stream has to be WorkerHello");
  }
  const uint32_t theirs = request.hello().version().protocol_version();
  if (theirs != kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the worker speaks protocol version ", theirs, " (release \"",
                     OneLine(request.hello().version().release(), kMaxReleaseBytes),
                     "\"), control speaks ", kProtocolVersion, " (release \"", kRelease,
                     "\"): build the worker with the library of this release"));
  }
  return absl::OkStatus();
}

// Returns the status for a worker whose token the keeper refused. It hides the details from callers
// without a valid token.
absl::Status RefusedToken(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return status;
  if (absl::IsDeadlineExceeded(status)) return absl::UnavailableError(status.message());
  return absl::UnauthenticatedError("the token is unknown or used: ask the keeper for a new one");
}

// One stream. A thread decides to write or to finish under the lock, and calls gRPC outside of it;
// at most one thread has decided to write, and one to finish. gRPC frees the call once it is
// finished and nothing is under way. So Finish waits for a write that was decided, and reads start
// in reactions only.
class AttachStream final : public grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>,
                           public WorkerStream,
                           public std::enable_shared_from_this<AttachStream> {
 public:
  AttachStream(WorkerServiceContext* context, std::string peer)
      : context_(context), peer_(std::move(peer)) {
    health_.set_healthy(true);
    if (const std::optional<Peer> known = context_->peers->Find(peer_)) uid_ = known->uid;
  }

  void Begin() {
    self_ = shared_from_this();
    // The callback must not own the stream, because the stream owns the alarm, which owns the
    // callback.
    hello_alarm_.Set(std::chrono::system_clock::now() + context_->hello_timeout,
                     [weak = weak_from_this()](bool expired) {
                       const auto stream = expired ? weak.lock() : nullptr;
                       if (stream) stream->OnNoHello();
                     });
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Close(absl::OkStatus());  // the worker has closed its side, or is gone
      return;
    }
    if (!greeted_.exchange(true)) {
      hello_alarm_.Cancel();
      Greet();
    } else if (request_.has_health()) {
      NoteHealth(request_.health());
    }
    StartRead(&request_);
  }

  void OnWriteDone(bool) override {
    bool finish;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      writing_ = false;
      finish = finished_;
    }
    if (finish) {
      Finish(end_);
    } else {
      Pump();
    }
  }

  void OnCancel() override { Close(absl::CancelledError("cancelled")); }

  void OnDone() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      done_ = true;
    }
    hello_alarm_.Cancel();
    if (worker_id_ != 0) context_->streams->Remove(service_, worker_id_, this);
    self_.reset();
  }

  void Notify(v1::AttachResponse notice) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (queue_.size() < kMaxQueuedNotices) queue_.push_back(std::move(notice));
    }
    Pump();
  }

  void Close(absl::Status reason) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (finished_) return;
      finished_ = true;
      end_ = ToGrpc(reason);
      if (writing_) return;  // OnWriteDone finishes
    }
    Finish(end_);
  }

  v1::WorkerHealth health() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return health_;
  }

 private:
  void OnNoHello() {
    if (greeted_.exchange(true)) return;
    Refuse(absl::DeadlineExceededError(
        absl::StrCat("no WorkerHello came within ", context_->hello_timeout.count(),
                     " ms of the stream's beginning: send it first")));
  }

  // Returns the keeper that has to check the token. After success Redemptions::End has to follow.
  absl::StatusOr<KeeperClient*> TakeHello() {
    BATON_RETURN_IF_ERROR(CheckHello(request_));
    service_ = request_.hello().service();
    BATON_ASSIGN_OR_RETURN(KeeperClient * keeper, context_->keepers->Find(service_));
    if (request_.hello().token().size() != kWorkerTokenBytes) {
      return RefusedToken(absl::UnauthenticatedError("it is not of a token's length"));
    }
    if (context_->redemptions.Begin(uid_)) return keeper;
    return absl::ResourceExhaustedError(
        absl::StrCat(Redemptions::kPerUid, " streams of uid ", uid_,
                     " wait for a keeper to take their tokens: try again in a moment"));
  }

  void Greet() {
    const absl::StatusOr<KeeperClient*> keeper = TakeHello();
    if (!keeper.ok()) return Refuse(keeper.status());
    internal::ManagementRequest redeem;
    redeem.mutable_redeem_token()->set_token(request_.hello().token());
    (*keeper)->Call(std::move(redeem), kRedeemNs, [self = shared_from_this()](auto reply) {
      self->context_->redemptions.End(self->uid_);
      if (reply.ok() && reply->redeemed().worker_id() != 0) {
        self->Welcome(reply->redeemed().worker_id());
      } else {
        self->Refuse(RefusedToken(reply.status()));
      }
    });
  }

  void Welcome(uint64_t worker_id) {
    worker_id_ = worker_id;
    v1::AttachResponse welcome;
    FillVersion(welcome.mutable_welcome()->mutable_version());
    welcome.mutable_welcome()->set_worker_id(worker_id);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (finished_) return;  // the worker went away meanwhile, and its token is used
      queue_.push_back(std::move(welcome));
    }
    context_->streams->Add(service_, worker_id, shared_from_this());
    bool done;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      done = done_;
    }
    if (done) context_->streams->Remove(service_, worker_id, this);  // OnDone came before Add
    if (const std::optional<uint64_t> suppressed = context_->log_budget.Take()) {
      log::Write(
          spdlog::level::info, {.service = service_, .worker_id = worker_id},
          absl::StrCat("service ", service_, ": worker ", worker_id, " opened its stream (",
                       context_->peers->Describe(peer_), "; ", *suppressed, " more not logged)"));
    }
    Pump();
  }

  void Refuse(const absl::Status& status) {
    if (const std::optional<uint64_t> suppressed = context_->log_budget.Take()) {
      spdlog::warn("a worker's stream was refused ({}; {} more not logged): {}",
                   context_->peers->Describe(peer_), *suppressed,
                   OneLine(MessageOf(status), kMaxReasonBytes));
    }
    Close(status);
  }

  void NoteHealth(const v1::WorkerHealth& health) {
    const std::string detail = OneLine(health.detail(), kMaxHealthDetail);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const bool changed = health.healthy() != health_.healthy();
      health_.set_healthy(health.healthy());
      health_.set_detail(detail);
      if (!changed) return;
    }
    if (!context_->log_budget.Take()) return;
    log::Write(spdlog::level::info, {.service = service_, .worker_id = worker_id_.load()},
               absl::StrCat("service ", service_, ": worker ", worker_id_.load(), " says it is ",
                            health.healthy() ? "healthy" : "not healthy", ": ", detail));
  }

  void Pump() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (finished_ || writing_ || queue_.empty()) return;
      writing_ = true;
      response_ = std::move(queue_.front());
      queue_.pop_front();
    }
    StartWrite(&response_);
  }

  WorkerServiceContext* const context_;
  const std::string peer_;
  uint32_t uid_ = UINT32_MAX;           // of the worker's process; UINT32_MAX: unknown
  std::shared_ptr<AttachStream> self_;  // until OnDone

  grpc::Alarm hello_alarm_;
  std::atomic<bool> greeted_{false};  // the hello was taken, or given up

  // The state of the read side, which has one operation at a time.
  v1::AttachRequest request_;
  std::string service_;
  std::atomic<uint64_t> worker_id_{0};  // 0: not welcomed yet

  mutable std::mutex mutex_;
  v1::WorkerHealth health_;               // guarded by mutex_
  std::deque<v1::AttachResponse> queue_;  // guarded by mutex_
  v1::AttachResponse response_;           // while writing_
  bool writing_ = false;                  // guarded by mutex_
  bool finished_ = false;                 // guarded by mutex_; end_ does not change any more
  bool done_ = false;                     // guarded by mutex_
  grpc::Status end_;
};

class WorkerServiceImpl final : public v1::WorkerService::CallbackService {
 public:
  explicit WorkerServiceImpl(WorkerServiceContext* context) : context_(context) {}

  grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>* Attach(
      grpc::CallbackServerContext* call) override {
    auto stream = std::make_shared<AttachStream>(context_, call->peer());
    stream->Begin();
    return stream.get();
  }

 private:
  WorkerServiceContext* const context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerService(WorkerServiceContext* context) {
  return std::make_unique<WorkerServiceImpl>(context);
}

}  // namespace baton
