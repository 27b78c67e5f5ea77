#include "supervisor/metrics/endpoint.h"

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace baton::metrics {
Endpoint::Endpoint(std::string address, std::shared_ptr<prometheus::Collectable> source,
                   std::chrono::milliseconds retry)
    : address_(std::move(address)), source_(std::move(source)), retry_(retry) {
  thread_ = std::thread([this] { Run(); });
}

Endpoint::~Endpoint() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int Endpoint::port() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return exposer_ == nullptr ? 0 : exposer_->GetListeningPorts().front();
}

void Endpoint::Run() {
  bool told = false;
  for (;;) {
    std::unique_lock<std::mutex> lock(mutex_);
    const absl::Status listening = Listen();
    if (listening.ok()) {
      spdlog::info("metrics are at http://{}:{}/metrics", address_.substr(0, address_.rfind(':')),
                   exposer_->GetListeningPorts().front());
      return;
    }
    if (!std::exchange(told, true)) spdlog::error("{}", std::string(listening.message()));
    if (changed_.wait_for(lock, retry_, [this] { return stopping_; })) return;
  }
}

// prometheus-cpp reports failure by an exception, without the reason.
absl::Status Endpoint::Listen() {
  try {
    const std::vector<std::string> options = {"listening_ports",    address_, "num_threads", "2",
                                              "request_timeout_ms", "5000"};
    exposer_ = std::make_unique<prometheus::Exposer>(options);
    exposer_->RegisterCollectable(source_);
    return absl::OkStatus();
  } catch (const std::exception& exception) {
    exposer_.reset();
    return absl::UnavailableError(absl::StrCat(
        "no metrics yet: cannot listen at metrics_address ", address_, " (", exception.what(),
        "): is another process there (ss -ltnp), and is it an address of this machine? "
        "Tried again until it works"));
  }
}

}  // namespace baton::metrics
