#include "worker/control_stream.h"

#include <fcntl.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/grpcpp.h"
#include "lib/base/pauses.h"
#include "lib/base/status.h"
#include "lib/base/utf8.h"
#include "lib/base/version.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/v1/worker.grpc.pb.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause(20);
constexpr milliseconds kMaxPause(5000);

// Short, because Stop waits for an attempt under way, and another attempt follows.
constexpr int kConnectMs = 200;
constexpr size_t kMaxHealthDetail = 256;

// Calls a function of the host program, and ignores what it throws.
template <typename Callback, typename... Arguments>
void CallHost(const Callback& callback, const Arguments&... arguments) {
  try {
    if (callback) callback(arguments...);
  } catch (...) {
  }
}

}  // namespace

class ControlStream::Impl {
 public:
  explicit Impl(ControlStreamOptions options)
      : options_(std::move(options)), token_(options_.first_token) {}

  void Start() {
    // The new thread blocks all signals: they are for the host's threads.
    sigset_t all;
    sigset_t former;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &former);
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &former, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &former, nullptr);
  }

  void Stop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      if (call_) call_->TryCancel();
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status status() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }

  void ReportHealth(bool healthy, std::string_view detail) {
    std::string valid = ValidUtf8(detail, kMaxHealthDetail);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      // A worker counts as healthy until it reports that it is not.
      if (healthy == healthy_ && valid == health_detail_) return;
      healthy_ = healthy;
      health_detail_ = std::move(valid);
      ++health_changes_;
    }
    changed_.notify_all();
  }

 private:
  using Stream = grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>;

  void Run() {
    BackOff back_off(kFirstPause, kMaxPause);
    for (;;) {
      absl::Status ended;
      welcomed_ = false;
      try {
        ended = RunOnce();
      } catch (const std::exception& exception) {
        ended = absl::InternalError(exception.what());
      } catch (...) {
        ended = absl::InternalError("an exception of unknown kind");
      }
      if (welcomed_) back_off.Reset();
      std::unique_lock<std::mutex> lock(mutex_);
      status_ = std::move(ended);
      if (changed_.wait_for(lock, back_off.Next(), [this] { return stopping_; })) return;
    }
  }

  // Serves one connection, to its end. Asks the keeper for a token only when control is there.
  absl::Status RunOnce() {
    BATON_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectUnix(options_.control_socket, kConnectMs));
    if (token_.empty()) BATON_RETURN_IF_ERROR(RenewToken());
    fcntl(socket.get(), F_SETFL, O_NONBLOCK);
    const auto stub =
        v1::WorkerService::NewStub(grpc::CreateInsecureChannelFromFd("control", socket.Release()));
    grpc::ClientContext call;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return absl::CancelledError("stopped");
      call_ = &call;
    }
    const std::unique_ptr<Stream> stream = stub->Attach(&call);
    const absl::Cleanup forget_call = [this] {
      std::lock_guard<std::mutex> lock(mutex_);
      call_ = nullptr;
    };
    Converse(*stream);
    const grpc::Status end = stream->Finish();
    if (end.ok()) return absl::UnavailableError("control has closed the stream");
    return absl::Status(static_cast<absl::StatusCode>(end.error_code()), end.error_message());
  }

  absl::Status RenewToken() {
    if (!options_.new_token) {
      return absl::FailedPreconditionError("the token is used, and there is no way to a new one");
    }
    BATON_ASSIGN_OR_RETURN(token_, options_.new_token());
    return absl::OkStatus();
  }

  // Says hello, and reads to the end of the stream.
  void Converse(Stream& stream) {
    v1::AttachRequest request;
    v1::WorkerHello* hello = request.mutable_hello();
    hello->set_service(options_.service);
    hello->set_token(std::exchange(token_, std::string()));
    hello->mutable_version()->set_release(kRelease);
    hello->mutable_version()->set_protocol_version(kProtocolVersion);
    if (!stream.Write(request)) return;
    std::thread writer;
    const absl::Cleanup end_writer = [&] {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        reading_ended_ = true;
      }
      changed_.notify_all();
      if (writer.joinable()) writer.join();
    };
    {
      std::lock_guard<std::mutex> lock(mutex_);
      reading_ended_ = false;
    }
    v1::AttachResponse response;
    while (stream.Read(&response)) {
      if (response.has_welcome() && !welcomed_) {
        welcomed_ = true;
        {
          std::lock_guard<std::mutex> lock(mutex_);
          status_ = absl::OkStatus();
        }
        writer = std::thread([&] {
          try {
            WriteHealth(stream);
          } catch (...) {  // no memory: the next stream reports it
          }
        });
      } else if (response.has_handoff()) {
        const auto& shards = response.handoff().shards();
        CallHost(options_.on_handoff, std::vector<uint32_t>(shards.begin(), shards.end()));
      } else if (response.has_shutdown()) {
        CallHost(options_.on_shutdown, response.shutdown().reason());
      }
    }
  }

  // Runs in a thread of its own, because a write blocks while control does not read, and the worker
  // must not block.
  void WriteHealth(Stream& stream) {
    uint64_t told = 0;
    for (;;) {
      v1::AttachRequest request;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return reading_ended_ || health_changes_ != told; });
        if (reading_ended_) return;
        told = health_changes_;
        request.mutable_health()->set_healthy(healthy_);
        request.mutable_health()->set_detail(health_detail_);
      }
      if (!stream.Write(request)) return;
    }
  }

  const ControlStreamOptions options_;
  std::thread thread_;
  std::string token_;      // of the thread; empty once used
  bool welcomed_ = false;  // of the thread

  mutable std::mutex mutex_;
  std::condition_variable changed_;      // stopping_, reading_ended_, health_changes_
  bool stopping_ = false;                // guarded by mutex_
  bool reading_ended_ = false;           // guarded by mutex_; of the present stream
  bool healthy_ = true;                  // guarded by mutex_
  std::string health_detail_;            // guarded by mutex_
  uint64_t health_changes_ = 0;          // guarded by mutex_; 0: never told
  grpc::ClientContext* call_ = nullptr;  // guarded by mutex_; the one under way
  absl::Status status_ = absl::UnavailableError("control has not been reached yet");
};

ControlStream::ControlStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ControlStream::~ControlStream() { Stop(); }

absl::StatusOr<std::unique_ptr<ControlStream>> ControlStream::Start(ControlStreamOptions options) {
  // gRPC is initialized once and never shut down. Its shutdown, which comes with its last channel,
  // can take 10 s, and Stop must not take that long.
  static const bool grpc_kept = (grpc_init(), true);
  (void)grpc_kept;
  try {
    auto impl = std::make_unique<Impl>(std::move(options));
    impl->Start();
    return std::unique_ptr<ControlStream>(new ControlStream(std::move(impl)));
  } catch (const std::exception& exception) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the stream to control got no thread: ", exception.what()));
  }
}

void ControlStream::Stop() { impl_->Stop(); }

void ControlStream::ReportHealth(bool healthy, std::string_view detail) {
  impl_->ReportHealth(healthy, detail);
}

absl::Status ControlStream::status() const { return impl_->status(); }

}  // namespace baton
