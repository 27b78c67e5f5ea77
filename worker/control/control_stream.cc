#include "worker/control/control_stream.h"

#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/grpcpp.h"
#include "lib/base/status_macros.h"
#include "lib/base/version.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/v1/worker.grpc.pb.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff(20);
constexpr milliseconds kMaxBackoff(5000);

// Calls what the host gave, whatever it does.
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
    // The host's signals are for the host's threads.
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
    stop_requested_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status status() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }

 private:
  using Stream = grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>;

  void Run() {
    milliseconds backoff = kFirstBackoff;
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
      backoff = welcomed_ ? kFirstBackoff : std::min(backoff * 2, kMaxBackoff);
      std::unique_lock<std::mutex> lock(mutex_);
      status_ = std::move(ended);
      if (stop_requested_.wait_for(lock, backoff, [this] { return stopping_; })) return;
    }
  }

  // One connection, to its end. The token is asked for once control is there, so that its absence
  // costs the keeper nothing.
  absl::Status RunOnce() {
    BATON_ASSIGN_OR_RETURN(FileDescriptor socket, ConnectUnix(options_.control_socket));
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
    Converse(*stream);
    const grpc::Status end = stream->Finish();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      call_ = nullptr;
    }
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
    v1::AttachResponse response;
    while (stream.Read(&response)) {
      if (response.has_welcome()) {
        welcomed_ = true;
        std::lock_guard<std::mutex> lock(mutex_);
        status_ = absl::OkStatus();
      } else if (response.has_handoff()) {
        const auto& shards = response.handoff().shards();
        CallHost(options_.on_handoff, std::vector<uint32_t>(shards.begin(), shards.end()));
      } else if (response.has_shutdown()) {
        CallHost(options_.on_shutdown, response.shutdown().reason());
      }
    }
  }

  const ControlStreamOptions options_;
  std::thread thread_;
  std::string token_;      // of the thread; empty once used
  bool welcomed_ = false;  // of the thread

  mutable std::mutex mutex_;
  std::condition_variable stop_requested_;
  bool stopping_ = false;                // guarded by mutex_
  grpc::ClientContext* call_ = nullptr;  // guarded by mutex_; the one under way
  absl::Status status_ = absl::UnavailableError("control has not been reached yet");
};

ControlStream::ControlStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ControlStream::~ControlStream() { Stop(); }

absl::StatusOr<std::unique_ptr<ControlStream>> ControlStream::Start(ControlStreamOptions options) {
  // Once, and never undone: gRPC's own shutdown, with its last channel, can take 10 s, which Stop
  // does not have.
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

absl::Status ControlStream::status() const { return impl_->status(); }

}  // namespace baton
