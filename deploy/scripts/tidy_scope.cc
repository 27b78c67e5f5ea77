// A plugin of clang-tidy, which lint.sh loads: checks walk through declarations of ours alone.
// Without it they walk through those of all headers, which takes twice as long, and their findings
// there are not shown. clangd restricts clang-tidy's checks in the same way.
#include <clang/AST/ASTConsumer.h>
#include <clang/AST/ASTContext.h>
#include <clang/Basic/SourceManager.h>
#include <clang/Frontend/FrontendPluginRegistry.h>
#include <llvm/ADT/StringRef.h>

#include <memory>
#include <string>
#include <vector>

namespace {

class ScopeSetter final : public clang::ASTConsumer {
 public:
  void HandleTranslationUnit(clang::ASTContext& context) override {
    const clang::SourceManager& sources = context.getSourceManager();
    std::vector<clang::Decl*> ours;
    for (clang::Decl* const declaration : context.getTranslationUnitDecl()->decls()) {
      if (!sources.isInSystemHeader(declaration->getLocation())) ours.push_back(declaration);
    }
    context.setTraversalScope(ours);
  }
};

class SetScope final : public clang::PluginASTAction {
 protected:
  std::unique_ptr<clang::ASTConsumer> CreateASTConsumer(clang::CompilerInstance& /*instance*/,
                                                        llvm::StringRef /*file*/) override {
    return std::make_unique<ScopeSetter>();
  }
  bool ParseArgs(const clang::CompilerInstance& /*instance*/,
                 const std::vector<std::string>& /*arguments*/) override {
    return true;
  }
  ActionType getActionType() override { return AddBeforeMainAction; }
};

const clang::FrontendPluginRegistry::Add<SetScope> kAdded("tidy-scope", "");

}  // namespace
