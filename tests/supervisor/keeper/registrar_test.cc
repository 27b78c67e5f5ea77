#include "supervisor/keeper/registrar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <future>
#include <vector>

namespace baton::keeper {
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

TEST(RegistrarTest, shouldGiveWayToOtherThreads) {
  std::promise<int> its;
  Registrar registrar;
  registrar.Post([&its] { its.set_value(getpriority(PRIO_PROCESS, 0)); });  // the thread's
  EXPECT_EQ(its.get_future().get(), std::min(19, getpriority(PRIO_PROCESS, 0) + 10));
}

}  // namespace
}  // namespace baton::keeper
