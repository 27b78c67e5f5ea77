#include "supervisor/driver/engine/registrar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <vector>

namespace baton::driver_process {
namespace {

using ::testing::ElementsAre;

TEST(RegistrarTest, shouldDoItsWorkInOrder) {
  std::vector<int> done;
  std::promise<void> all;
  Registrar registrar;
  for (int i = 1; i <= 3; ++i) registrar.Post([&done, i] { done.push_back(i); });
  registrar.Post([&all] { all.set_value(); });
  all.get_future().wait();
  EXPECT_THAT(done, ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace baton::driver_process
