// A keeper's side of batond's store, with batond's.
#include "supervisor/keeper/held_descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "supervisor/batond/descriptor_store.h"
#include "supervisor/batond/store_server.h"

namespace baton::keeper {
namespace {

class HeldDescriptorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    server_ = std::make_unique<StoreServer>(io_, "keeper", FileDescriptor(pair[0]), store_);
    held_ = std::make_unique<HeldDescriptors>(FileDescriptor(pair[1]));
    thread_ = std::thread([this] { io_.run(); });
  }
  void TearDown() override {
    held_.reset();  // the server has nothing more to wait for
    thread_.join();
  }

  // Files that say their number.
  std::vector<FileDescriptor> Make(int count) {
    std::vector<FileDescriptor> files;
    for (int i = 0; i < count; ++i) {
      files.emplace_back(memfd_create("file", MFD_CLOEXEC));
      const std::string text = std::to_string(i);
      EXPECT_EQ(write(files.back().get(), text.data(), text.size()),
                static_cast<ssize_t>(text.size()));
    }
    return files;
  }
  absl::Status Put(const std::string& name, const std::vector<FileDescriptor>& files) {
    std::vector<int> numbers;
    for (const FileDescriptor& file : files) numbers.push_back(file.get());
    return held_->Put(name, numbers);
  }
  std::vector<std::string> TextsOf(const std::string& name) {
    std::vector<std::string> texts;
    const absl::StatusOr<std::vector<FileDescriptor>> files = held_->Get(name);
    EXPECT_TRUE(files.ok()) << files.status();
    for (const FileDescriptor& file : *files) {
      char text[8] = {};
      EXPECT_GT(pread(file.get(), text, sizeof(text) - 1, 0), 0);
      texts.emplace_back(text);
    }
    return texts;
  }

  boost::asio::io_context io_{1};
  DescriptorStore store_;
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<HeldDescriptors> held_;
  std::thread thread_;
};

TEST_F(HeldDescriptorsTest, shouldGiveBackMoreThanOneEntryHasInOrder) {
  ASSERT_TRUE(Put("wakes", Make(20)).ok());
  const std::vector<std::string> texts = TextsOf("wakes");
  ASSERT_EQ(texts.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(texts[static_cast<size_t>(i)], std::to_string(i));
  EXPECT_EQ(TextsOf("wakes").size(), 20u);  // and keeps them
}

TEST_F(HeldDescriptorsTest, shouldHaveNothingThatWasNotPut) {
  EXPECT_TRUE(TextsOf("arena").empty());
}

TEST_F(HeldDescriptorsTest, shouldPutInThePlaceOfTheFormer) {
  ASSERT_TRUE(Put("rdma_cm", Make(3)).ok());
  ASSERT_TRUE(Put("rdma_cm", Make(1)).ok());
  EXPECT_EQ(TextsOf("rdma_cm").size(), 1u);
}

TEST_F(HeldDescriptorsTest, shouldDropAll) {
  ASSERT_TRUE(Put("wakes", Make(9)).ok());
  ASSERT_TRUE(Put("arena", Make(4)).ok());
  ASSERT_TRUE(held_->DropAll().ok());
  EXPECT_TRUE(TextsOf("wakes").empty());
  EXPECT_TRUE(TextsOf("arena").empty());
}

TEST_F(HeldDescriptorsTest, shouldSayWhatBatondRefuses) {
  const absl::Status status = Put(std::string(80, 'x'), Make(1));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

}  // namespace
}  // namespace baton::keeper
