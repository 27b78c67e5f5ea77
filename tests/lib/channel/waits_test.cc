#include <sys/eventfd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <optional>

#include "gtest/gtest.h"
#include "lib/channel/waits.h"

namespace baton {
namespace {

using boost::asio::posix::stream_descriptor;

using Await = std::function<void(stream_descriptor&, std::function<void()>)>;

class AwaitReadableTest : public ::testing::Test {
 protected:
  // Two descriptors become readable at once. Whichever is told of first closes the other, and makes
  // a third one, with `count` in it, which `await` waits for: told_ says whether it was told of.
  void Run(unsigned count, const Await& await) {
    for (size_t i = 0; i < two_.size(); ++i) {
      two_[i].emplace(loop_, eventfd(1, EFD_CLOEXEC));
      two_[i]->async_wait(stream_descriptor::wait_read, [this, i, count, await](const auto& error) {
        if (error || third_) return;
        two_[1 - i].reset();
        third_.emplace(loop_, eventfd(count, EFD_CLOEXEC));
        await(*third_, [this] { told_ = true; });
      });
    }
    while (loop_.poll() > 0) {
    }
  }

  boost::asio::io_context loop_{1};
  std::array<std::optional<stream_descriptor>, 2> two_;
  std::optional<stream_descriptor> third_;
  bool told_ = false;
};

void AwaitByUs(stream_descriptor& descriptor, const std::function<void()>& done) {
  AwaitReadable(descriptor, done);
}

TEST_F(AwaitReadableTest, shouldTellNothingBeforeTheDescriptorIsReadable) {
  Run(0, AwaitByUs);
  EXPECT_FALSE(told_);
  ASSERT_EQ(eventfd_write(third_->native_handle(), 1), 0);
  loop_.poll();
  EXPECT_TRUE(told_);
}

TEST_F(AwaitReadableTest, shouldTellOfWhatIsReadable) {
  Run(1, AwaitByUs);
  EXPECT_TRUE(told_);
}

TEST_F(AwaitReadableTest, shouldTellNothingOnceTheDescriptorIsClosed) {
  Run(0, AwaitByUs);
  third_.reset();
  loop_.restart();
  EXPECT_GT(loop_.poll(), 0u);  // the wait's end
  EXPECT_FALSE(told_);
}

// The negative control: what this is for.
TEST_F(AwaitReadableTest, shouldBeNeededByAsio) {
  Run(0, [](stream_descriptor& descriptor, const std::function<void()>& done) {
    descriptor.async_wait(stream_descriptor::wait_read, [done](const auto& error) {
      if (!error) done();
    });
  });
  EXPECT_TRUE(told_);
}

}  // namespace
}  // namespace baton
