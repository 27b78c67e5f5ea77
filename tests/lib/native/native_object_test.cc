#include "lib/native/native_object.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "lib/base/version.h"
#include "lib/native/host.h"
#include "tests/harness/temp_directory.h"
#include "tests/lib/native/forked_object.h"

namespace {

// The host of a `baton-driver` that is newer than the object's library.
BatonNativeHost NewerHost() {
  BatonNativeHost host = {};
  host.version = 99;
  host.bytes = sizeof(host);
  host.baton_release = "9.8.7";
  return host;
}
BatonNativeHost g_host = NewerHost();

// A part of the executable that its children must not take down with them.
class Parent {
 public:
  ~Parent() { (void)!write(STDOUT_FILENO, "parent's destructor\n", 20); }
};
Parent g_parent;

}  // namespace

extern "C" BatonNativeHost* baton_native_host() { return &g_host; }

namespace baton::native {
namespace {

using ::testing::AllOf;
using testing::Ended;
using ::testing::HasSubstr;
using testing::kNotLoaded;
using ::testing::Not;
using testing::PathOf;
using testing::RunObject;

const std::string kObedient = "obedient_object.so";

void ExpectNotLoaded(const Ended& ended) {
  EXPECT_TRUE(WIFEXITED(ended.status)) << ended.status;
  EXPECT_EQ(WEXITSTATUS(ended.status), kNotLoaded);
}

TEST(NativeObjectTest, shouldRunMainWithItsArgumentsAndEndWithItsResult) {
  const Ended ended = RunObject(PathOf(kObedient), {"one", "two words"});
  EXPECT_EQ(WEXITSTATUS(ended.status), 7) << ended.output;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("argc 3, name obedient_object.so\n"),
                                  HasSubstr("argument one\n"), HasSubstr("argument two words\n")));
}

TEST(NativeObjectTest, shouldDestroyWhatIsTheObjectsAndNothingOfTheExecutable) {
  for (const char* how : {"return", "exit"}) {
    const Ended ended = RunObject(PathOf(kObedient), {how});
    EXPECT_THAT(ended.output,
                AllOf(HasSubstr("static destructor"), Not(HasSubstr("parent's destructor"))))
        << how;
  }
}

TEST(NativeObjectTest, shouldEndWithTheStatusOfExit) {
  EXPECT_EQ(WEXITSTATUS(RunObject(PathOf(kObedient), {"exit"}).status), 9);
}

TEST(NativeObjectTest, shouldLetTheLibraryFindItsHostAndRefuseTheWrongOne) {
  const Ended ended = RunObject(PathOf(kObedient), {"attach"});
  EXPECT_EQ(WEXITSTATUS(ended.status), 7);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("release 9.8.7"),
                                  HasSubstr("version 99"), HasSubstr(kRelease)));
}

TEST(NativeObjectTest, shouldNameTheFileThatIsMissing) {
  const Ended ended = RunObject("/nowhere/kv.so", {});
  ExpectNotLoaded(ended);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("/nowhere/kv.so cannot be run as a native worker"),
                                  HasSubstr("No such file")));
}

TEST(NativeObjectTest, shouldWantAnAbsolutePath) {
  const Ended ended = RunObject("kv.so", {});
  ExpectNotLoaded(ended);
  EXPECT_THAT(ended.output, HasSubstr("\"kv.so\": give its absolute path"));
}

TEST(NativeObjectTest, shouldRefuseAFileThatIsNoObject) {
  const auto directory = harness::TempDirectory::Create().value();
  const std::string path = directory.File("kv.so");
  std::ofstream(path) << "#!/bin/sh\nexit 0\n" << std::string(4096, '#');
  const Ended ended = RunObject(path, {});
  ExpectNotLoaded(ended);
  EXPECT_THAT(ended.output, AllOf(HasSubstr(path), HasSubstr("invalid ELF header")));
}

// The program of a brokered worker in the place of its object.
TEST(NativeObjectTest, shouldRefuseAProgram) {
  const Ended ended = RunObject("/proc/self/exe", {});
  ExpectNotLoaded(ended);
  EXPECT_THAT(ended.output, HasSubstr("cannot dynamically load"));
}

TEST(NativeObjectTest, shouldRefuseAnObjectWithoutTheWorkerLibrary) {
  const Ended ended = RunObject(PathOf("foreign_object.so"), {});
  ExpectNotLoaded(ended);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("it exports no baton_native_object"),
                                  HasSubstr("worker/service.bzl")));
}

TEST(NativeObjectTest, shouldRefuseAnObjectWithoutMain) {
  const Ended ended = RunObject(PathOf("headless_object.so"), {});
  ExpectNotLoaded(ended);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("undefined symbol: main"), HasSubstr("define main")));
}

TEST(NativeObjectTest, shouldRefuseAnotherVersionAndNameBoth) {
  const Ended ended = RunObject(PathOf("newer_object.so"), {});
  ExpectNotLoaded(ended);
  EXPECT_THAT(ended.output,
              AllOf(HasSubstr("release 9.8.7"), HasSubstr("version 99"), HasSubstr(kRelease),
                    HasSubstr(absl::StrCat("version ", BATON_NATIVE_VERSION))));
}

// At once, and not when it comes to that call.
TEST(NativeObjectTest, shouldRefuseAnObjectThatIsIncomplete) {
  const Ended ended = RunObject(PathOf("incomplete_object.so"), {});
  ExpectNotLoaded(ended);
  EXPECT_THAT(ended.output, HasSubstr("FunctionThatNobodyHas"));
}

}  // namespace
}  // namespace baton::native
