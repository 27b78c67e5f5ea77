#include "supervisor/driver/code/loaded_code.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "lib/base/file_descriptor.h"
#include "lib/base/version.h"
#include "tests/harness/binaries.h"
#include "tests/harness/expectations.h"
#include "tests/harness/file_content.h"
#include "tests/harness/temp_directory.h"

namespace baton::driver_process {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<const BatonDriverCode*> Load(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_PATH | O_CLOEXEC));
  return LoadDriverCode(file.get());
}
absl::StatusOr<const BatonDriverCode*> LoadOurs() {
  return Load(harness::Binaries().Find("libbaton-driver.so").value());
}

// Code of other releases reads these. What changes here is another version.
TEST(DriverCode, shouldLieWhereOtherReleasesLookForIt) {
  EXPECT_EQ(BATON_DRIVER_CODE_VERSION, 1);
  EXPECT_EQ(BATON_INHERITED_VERSION, 1);
  EXPECT_EQ(offsetof(BatonDriverCode, baton_release), 8u);
  EXPECT_EQ(offsetof(BatonDriverCode, run_broker), 16u);
  EXPECT_EQ(offsetof(BatonDriverCode, native_host), 32u);
  EXPECT_EQ(offsetof(BatonInheritedQueues, memories), 16u);
  EXPECT_EQ(offsetof(BatonInheritedQueues, device), 48u);
  EXPECT_EQ(offsetof(BatonInheritedQueues, shards), 80u);
  EXPECT_EQ(offsetof(BatonInheritedQueues, shard_count), 88u);
  EXPECT_EQ(offsetof(BatonInheritedQueues, lifeline), 100u);
  EXPECT_EQ(offsetof(BatonInheritedQueues, outside_effects), 112u);
  EXPECT_EQ(offsetof(BatonInheritedQueues, inherited_version), 124u);
  EXPECT_EQ(offsetof(BatonBrokerHost, board), 128u);
  EXPECT_EQ(offsetof(BatonBrokerHost, workers), 144u);
  EXPECT_EQ(offsetof(BatonBrokerHost, messages), 160u);
  EXPECT_EQ(offsetof(BatonOwnerHost, wakes), 128u);
  EXPECT_EQ(offsetof(BatonOwnerHost, session), 152u);
  EXPECT_EQ(offsetof(BatonInheritedShard, shared_receives), 40u);
  EXPECT_EQ(offsetof(BatonInheritedShard, queue_pairs), 72u);
  EXPECT_EQ(offsetof(BatonInheritedDevice, file), 16u);
  EXPECT_EQ(offsetof(BatonInheritedCompletionQueue, entry_count), 16u);
  EXPECT_EQ(offsetof(BatonInheritedCompletionQueue, channel_socket), 36u);
  EXPECT_EQ(offsetof(BatonInheritedSharedReceiveQueue, slot_bytes), 24u);
  EXPECT_EQ(offsetof(BatonInheritedQueuePair, place), 20u);
  EXPECT_EQ(offsetof(BatonInheritedQueuePair, receive_bytes), 32u);
}

TEST(DriverCode, shouldBeLoadedAndTellItsRelease) {
  const BatonDriverCode* code = nullptr;
  ASSERT_OK_AND_ASSIGN(code, LoadOurs());
  EXPECT_STREQ(code->baton_release, kRelease);
  EXPECT_EQ(code->native_host(), nullptr);  // this is no native worker
}

// dlopen(3) would take a file of the same name for the former one.
TEST(DriverCode, shouldBeThatOfTheFileThatIsOpen) {
  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  const std::string path = directory.File("code.so");
  const std::string ours =
      harness::ReadFile(harness::Binaries().Find("libbaton-driver.so").value());
  for (const char* const release : {"0.9.1", "0.9.2", "0.9.3"}) {
    harness::InstallProgram(path, harness::WithRelease(ours, release));
    for (int i = 0; i < 2; ++i) {
      const BatonDriverCode* code = nullptr;
      ASSERT_OK_AND_ASSIGN(code, Load(path));
      EXPECT_STREQ(code->baton_release, release);
    }
  }
}

TEST(DriverCode, shouldRefuseFilesThatAreNone) {
  for (const char* const path : {"/bin/sh", "/etc/passwd"}) {
    const absl::Status refused = Load(path).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("is no code of drivers: "));
  }
}

TEST(DriverCode, shouldRefuseADriverThatItDoesNotKnow) {
  const BatonDriverCode* code = nullptr;
  ASSERT_OK_AND_ASSIGN(code, LoadOurs());
  BatonOwnerHost owner = {};
  owner.queues.version = 99;
  owner.queues.bytes = sizeof(owner.queues);
  owner.queues.baton_release = "9.9.9";
  EXPECT_THAT(code->begin_owner(&owner), HasSubstr("this baton-driver (release 9.9.9) has 99"));
  BatonBrokerHost broker = {};
  broker.queues = owner.queues;
  EXPECT_THAT(code->run_broker(&broker), HasSubstr("this baton-driver (release 9.9.9) has 99"));
  // The queues, the arena and others have versions of their own.
  owner.queues.version = BATON_DRIVER_CODE_VERSION;
  owner.queues.inherited_version = BATON_INHERITED_VERSION + 1;
  EXPECT_THAT(code->begin_owner(&owner), HasSubstr("or what belongs to it has another version"));
}

}  // namespace
}  // namespace baton::driver_process
