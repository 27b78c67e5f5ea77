// A keeper's driver without a process, a thread or news of its own: an engine that the test has.
#ifndef TESTS_SUPERVISOR_KEEPER_INLINE_DRIVER_CLIENT_H_
#define TESTS_SUPERVISOR_KEEPER_INLINE_DRIVER_CLIENT_H_

#include <string_view>
#include <utility>
#include <vector>

#include "supervisor/driver/engine/order_executor.h"
#include "supervisor/keeper/driver_client.h"

namespace baton::keeper::testing {

class InlineDriverClient final : public DriverClient {
 public:
  // All outlive it.
  InlineDriverClient(const v1::ServiceConfig& service, driver_process::ServiceEngine& engine,
                     driver_process::NewsQueue& news, driver_process::WorkerForks* forks = nullptr)
      : news_(news), executor_(service, engine, news, forks) {}

  void LookAtLocks() { executor_.LookAtLocks(); }
  void CancelHandovers() { executor_.CancelHandovers(); }

  const arena::Arena& arena() const override { return executor_.arena(); }
  std::string_view device_name() const override { return executor_.device_name(); }
  int news_fd() const override { return -1; }  // the test delivers
  internal::DriverAnswer Execute(const internal::DriverOrder& order,
                                 std::vector<FileDescriptor> descriptors = {},
                                 std::vector<FileDescriptor>* received = nullptr) override {
    return executor_.Execute(order, std::move(descriptors), received);
  }

 protected:
  std::vector<internal::DriverNews> TakeNews() override { return news_.Take(); }

 private:
  driver_process::NewsQueue& news_;
  driver_process::OrderExecutor executor_;
};

}  // namespace baton::keeper::testing

#endif  // TESTS_SUPERVISOR_KEEPER_INLINE_DRIVER_CLIENT_H_
