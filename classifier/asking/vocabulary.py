"""The words by which classifier/asking tells a request from what stands around it, as data.

Collected from the default templates of public frameworks (LlamaIndex, LangChain and its hub, Haystack, DSPy, CrewAI, AutoGen, Dify,
Flowise, Alpaca, Ragas, Spring AI, Semantic Kernel, Cline, Codex, Claude Code), from mail programs, and from the languages of the tier set.
"""
# ruff: noqa: RUF001 - letters that look like others are what it is about

from typing import Final

LABELS: Final = {
    # The strongest label that has a value wins: 3 is a question of the caller's, 2 a task, 1 a turn of a conversation.
    3: (
        "question|query|user question|user query|user's question|user's query|users question|customer question|the question|current question"
        "|new question|latest question|actual question|follow up question|follow-up question|user_query|user_question|input question|q|ask|feedback"
        "|my question|original question|original query|the original question is as follows|the original query is as follows|the original question|search query|user ask|frage|pregunta|domanda|pergunta|问题|用户问题|问|вопрос|質問|질문"
    ),
    2: (
        "task|current task|your task|the task|user task|instruction|instructions|request|user request|user's request|the request|user input"
        "|user_input|user message|user_message|latest message|user prompt|prompt|problem|problem statement|goal|objective|user's message"
        "|customer message|current request|assignment|aufgabe|auftrag|anfrage|tarea|tâche|consigne|compito|任务|指令|задача|user_request|task_description"
        "|task description|current input|inquiry|user's task|user's goal|command|new input|human input"
    ),
    1: "user|human|usuario|benutzer|utilisateur|用户|me",
}
LAST_WORDS: Final = "question|query|request|task|instruction|instructions|ask|prompt|frage|anfrage|aufgabe|pregunta|tarea|consigne|问题|answer|response"
"""Words that say what a longer label is, as in "agent request"."""
ANSWERS: Final = (
    "answer|helpful answer|response|assistant|ai|a|final answer|output|result|your answer|your response|reply|solution|bot|model"
    "|answer to the question|generated answer|concise answer|sql|sqlquery|sql query|completion|antwort|respuesta|réponse|答案|回答|答|ответ|agent"
    "|assistant response|json|json output|code|standalone question|explanation"
)
"""Labels of what the model is to write: with nothing behind them they are cues."""
MATERIAL: Final = (
    "context|contexts|document|documents|text|input|passage|passages|chat history|chat_history|conversation history|history|conversation"
    "|search results|sources|source|data|email|e-mail|ticket|log|logs|schema|article|content|examples|example|evidence|background"
    "|background information|information|tools|observation|thought|thoughts|action|action input|file|files|transcript|reference|references"
    "|knowledge|knowledge base|table|tables|table schema|retrieved context|retrieved documents|context information|relevant information"
    "|previous conversation|current conversation|reasoning|memory|metadata|retrieved|articles|snippets|chunks|rationale|kontext|dokument"
    "|dokumente|contexto|documento|contexte|上下文|文档|资料|контекст|criteria|expected output|environment|workspace|summary|facts|notes|excerpts|we have provided an existing answer|existing answer|refined answer|refined"
)
RULES: Final = (
    "rules|format|output format|response format|guidelines|format instructions|formatting|style|role|persona|tone|important|note|answer format"
    "|system|language|reminder|disclaimer|hint|begin|thought process|output schema|json schema"
)
"""Labels behind which no caller's words stand."""

MATERIAL_TAGS: Final = (
    "context|contexts|document|documents|doc|docs|text|passage|passages|data|email|ticket|log|logs|schema|article|content|example|examples|evidence"
    "|background|sources|source|file|files|file_content|file_contents|transcript|reference|references|history|chat_history|conversation|tools|results"
    "|search_results|knowledge|code|table|tables|chunk|chunks|attachment|attachments|memory|memories|snippet|snippets|contract|report|item|items|page"
)
HARNESS_TAGS: Final = (
    "system-reminder|environment_details|environment_context|user_instructions|local-command-stdout|local-command-caveat|command-name"
    "|command-message|command-args|additional_data|open_and_recently_viewed_files|user_info|project_layout|agent_skills|ide_opened_file"
    "|ide_selection|user_memories|system_reminder|context_window|git_status|project_context"
)
"""Tags by which agents' programs put their own words beside the user's."""

VERBS: Final = (
    "adapt add advise analiza analyse analysez analysiere analyze annotate answer apply argue arrange assess balance "
    "begründe berechne bestimme beweis beweise bewerte book brainstorm break build calcula calculate calcule calculez call "
    "cancel categorise categorize change check choose cite clarify clasifica classe classify clean close code combine "
    "comment compara compare comparez complete compose compress compute concevez condense configure construct continue "
    "convert convierte conçois copy correct corrige corrigez count crea create critique crée créez cuenta da dame debug "
    "decide decode deduce define delete demonstrate demuestra deploy derive describe design detect determine develop devise "
    "diagnose dime dis discuss diseña distinguish divide document donne donnez draft draw démontre démontrez edit elaborate "
    "encode encuentra entwerfe entwirf enumera enumerate erklär erkläre ersetze erstelle escribe estimate evaluate evalúa "
    "examine execute expand explain explica explique expliquez explore express extend extract extrae extrais fais fass "
    "fasse fetch figure fill find finde finish fix flag forecast format formulate formuliere generate get gib give go group "
    "guess haz help highlight identify illustrate implement improve infer insert integrate interpret invent investigate "
    "judge justifica justifie justify korrigiere kürze label leite list liste listez locate look löse mach mache make "
    "map mark match measure merge migrate minimise minimize model modify montre montrez move muestra name negotiate nenn "
    "nenne normalise normalize open optimise optimize ordena order ordne organise organize outline paraphrase parse perform "
    "pick plan plane planifica planifie play plot polish post predict prepare present print prioritise prioritize process "
    "produce proofread propose proposez propón prove provide prüfe pull put rank rate read recommend reconcile reconstruct "
    "redact redacta redesign reduce refactor remind remove rename reorder repair rephrase replace report research resolve "
    "restate restructure resuelve resume return reverse review revisa revise rewrite round run rédige rédigez résous résume "
    "résumez save say schedule schreib schreibe score search select send set shorten show simplify simulate sketch solve "
    "sort specify spell split state structure suggest sum summarise summarize swap tabulate tag tell test think trace "
    "traduce traduis traduisez train transcribe transform translate trouve trouvez turn tweak type uncover update upload "
    "use validate vergleiche verify vérifie walk wandle weigh work write zeige zähle écris écrivez évalue évaluez übersetz "
    "übersetze"
)
"""With one of these in the imperative a request begins: classifier/training/ask_fit.py tells by them which sentences of a prompt ask."""

ASKED_WITH: Final = (
    "am are bitte can combien comment could cuál cuáles cuándo cuántas cuánto cuántos cómo did do does dónde es est est-ce "
    "has hat have help how i ich is ist je kann kannst können könntest may où peux-tu please por pourquoi pouvez-vous puede "
    "puedes quand que quel quelle quelles quels qui quién quoi qué shall should sind son wann warum was we welche welcher "
    "welches wer were weshalb what whats when where which who whom whose why wie wieso will wo would"
)
"""Other words with which a request begins."""

ASKED_CHINESE: Final = "请 帮 写 翻译 总结 解释 证明 设计 比较 列出 分析 给 说明 计算 求 用 把 将 为 制定 推导 评估 修改 改写 生成 找 告诉 提取 判断 检查 算 再 做 画 做一"

NEAR: Final = (
    "this these those above below following attached pasted provided enclosed quoted here given context diese dieser diesen "
    "dieses diesem folgende folgenden folgender oben unten este esta estos estas siguiente siguientes arriba abajo aquí cet "
    "cette ces suivant suivante suivants suivantes dessous dessus ici"
)
"""Words by which a request speaks of what stands beside it."""
INPUTS: Final = (
    "user users customer customers client clients sender senders caller callers author input inputs submitted described forwarded "
    "received incoming supplied sent reported transcribed uploaded nutzer kunden kunde kundin absender eingabe geschilderten "
    "usuario cliente remitente entrada utilisateur client expéditeur entrée décrite"
)
"""Words by which a task in a system message speaks of what the user sends."""
ARTICLES: Final = "the der die das den dem des el la los las del le les du each every"
THINGS: Final = (
    "line lines row rows list page loop value values test tests build app button call output response error errors version "
    "text code document documents article passage passages context log logs table email mail message letter function class "
    "report transcript contract clause clauses file files diff snippet script program error bug trace stack output schema "
    "minutes ticket tickets thread conversation author speaker draft abstract paper essay speech paragraph paragraphs input "
    "user notes story poem review reviews content data source sources invoice resume cv payload record records request "
    "comment spreadsheet sheet columns query patch texto documento código contrato correo mensaje vertrag brief dokument "
    "anfrage nachricht protokoll texte contrat courriel"
)
"""Names, after an article, of things beside a request."""
OWN: Final = (
    "my our your it its they them their he his she her mein meine meinen meiner meinem unser unsere unseren unserem unserer "
    "es sie ihn ihr ihre mi mis nuestro nuestra nuestros nuestras lo su sus ma mon mes notre nos sa son ses"
)
"""Words by which somebody speaks of what is his, and has often shown it."""
NEAR_CHINESE: Final = "这 下面 以下 上述 上面 其中 文中 此 该"
INPUTS_CHINESE: Final = "用户 客户 输入 给出 文本 消息"

CONSENT: Final = (
    r"(?:(?:please do|allez-y|yes|yeah|yep|yup|sure|ok|okay|alright|fine|great|perfect|good|cool|absolutely|definitely|certainly|of course|please|pls|exactly|right|correct"
    r"|agreed|approved|confirmed|confirm|lgtm|sounds (?:good|great|fine|perfect|right)|looks (?:good|great|fine)|go ahead|go for it|go on|proceed|continue|carry on"
    r"|do it|do that|do so|do this|do all(?: of (?:it|that|them))?|let'?s (?:do (?:it|that|this)|go)|make it so|ship it|with (?:all of )?(?:it|that|this|them)|all of (?:it|that|them)|everything"
    r"|i (?:agree|approve|accept|confirm)|that works|works for me|i'?d like that|that would be (?:great|good|nice|lovely|perfect)|please do|you may|start|begin|and|then|that|the|as (?:you )?(?:proposed|suggested|planned|described)|with the plan|the plan"
    r"|implement (?:it|that|this|all of it)|run it|apply (?:it|them|that)|execute(?: it| the plan)?|both|all|first one|second one|third one|last one|the (?:first|second|third|fourth|last|former|latter)(?: one| option)?"
    r"|(?:option|choice|variant|number|no\.?|plan|variante|opción|opcion|nummer|numéro|número|方案|选项|第)? ?#?(?:[1-9]|[a-e])\b[一二三四]?(?: (?:please|bitte|por favor|then))?|option (?:one|two|three)|tackle it|get started|get going|thanks|thank you|merci|danke|gracias"
    r"|ja|jo|jawohl|klar|gerne|gern|bitte|genau|einverstanden|in ordnung|passt|super|mach (?:das|es|weiter|mal)|machen sie (?:das|es|weiter)|leg los|los|weiter|alles|so machen wir(?:'s| es| das)?|option|tu das|nur zu|legen sie los|fang an|und|dann|mach(?:e)? (?:bitte )?(?:das|es|alles)|alles davon|wie vorgeschlagen"
    r"|s[ií]|claro|vale|dale|adelante|hazlo|de acuerdo|perfecto|por favor|sigue|continúa|continua|procede|todo|eso|así|háganlo|hágalo|como propones|con todo|me parece bien|está bien|esa|la (?:primera|segunda|tercera)|el (?:primero|segundo)|y|perfecto"
    r"|oui|ouais|d'accord|vas-y|ça me va|allez-y|allez|fais-le|faites-le|parfait|continue|continuez|ok|s'il (?:te|vous) plaît|bien sûr|entendu|volontiers|ça marche|tout|avec plaisir|la (?:première|deuxième|seconde)|le (?:premier|deuxième|second)|fais (?:ça|tout)|et|comme proposé|go"
    r"|好的?|好啊|行|可以|是的?|对|嗯|请|继续|请继续|开始|开始吧|就这么办|就这样|照做|没问题|同意|去做吧|做吧|吧|按(?:这个|你说的|计划)(?:来|做|办)?|第[一二三四]个|都要|全部|執行|执行|谢谢|了|就|那|来吧"
    r"|sim|claro que sim|vá em frente|pode|pode fazer|certo|да|давай|хорошо|продолжай|はい|お願いします|どうぞ|네|좋아요|va bene|sì|procedi|certo|tak|ja graag|doe maar)"
    r"[\s,.!;:…，。！、-]*)+"
)
"""A message of these words and no others accepts what the assistant proposed."""
CHOOSING: Final = r"(?:no|nope|nein|non|不|不要|rather|instead|yes|yeah|ok|okay|sure|ja|sí|si|oui|好的?|可以)?+[\s,.!，。-]*+(?:but|aber|pero|mais|但是?|then|thanks)?+[\s,，]*+(?:only|just|nur|solo|sólo|seulement|只要?|只做)?"
"""Words before the name of a part of a proposal, by which somebody accepts that part and nothing else."""
THANKS: Final = (
    r"(?:(?:many|no|nein|non|ok|okay|vale|好的?|不用了?|great|cool|super)?[\s,，]*+(?:thank you|thanks?|thx|ty|cheers|danke(?: dir| ihnen| schön)?|(?:vielen |besten )?dank|(?:muchas |mil )?gracias"
    r"|merci(?: beaucoup| bien)?|谢谢(?:你|您|了)?|多谢|感谢))"
)
PRAISE: Final = (
    r"(?:(?:ok|okay|alright|right|vale|d'accord)(?=.*(?:thank|thx|danke?|merci|gracias))|good to know|noted|great|perfect|super|good|cool|nice|fine|wonderful|excellent|awesome|amazing|brilliant|lovely|very much|so much|a lot|got it|i see|that'?s|it'?s|is|very|klar|toll|prima|perfekt|wunderbar"
    r"|sehr|gut|schön|perfecto|genial|estupendo|muy|bien|muchas|parfait|très|génial|excellente?|好|太|很|棒|极|了|完美|不错|really|all|for (?:now|that|your help|the help))"
)
"""Thanks and praise. A message of these alone accepts nothing, whatever was proposed."""
PLAIN_ASSENT: Final = r"(?:ok|okay|alright|all right|right|exactly|correct|genau|vale|好的|that works|works for me|looks (?:good|great|fine)|sounds (?:good|great|fine|perfect|right))"
"""Words that accept a proposal where it asks, and otherwise only tell that somebody has read it."""
DIRECT: Final = r"\b(?:go ahead|do (?:it|that)|please do|make it so|proceed|approved|go for it|ship it|get started|vas-y|allez-y|hazlo|adelante|mach (?:das|es)|leg los)\b|开始吧|就这么办|去做吧"
"""Consent that needs no question before it."""
PROPOSING: Final = (
    r"\b(?:shall i|should i|do you want|would you like|want me to|i can|i could|i'll|i will|i would|i'd|i propose|i suggest|i recommend|let me know if|may i|ready to|here'?s (?:the|my) plan"
    r"|plan:|next steps?|option [1a]|soll ich|möchtest du|möchten sie|ich kann|ich könnte|ich schlage|ich würde|wollen sie|willst du|quieres|quiere|puedo|podría|propongo|debo|le gustaría|te gustaría|veux-tu|voulez-vous"
    r"|je peux|je pourrais|je propose|dois-je|souhaitez-vous|posso|quer que)\b|要不要|需要我|我可以|我建议|是否|方案|我将"
)

COMMON: Final = (
    "about above after again along already although always among another answer anything around based because become before "
    "being below between can't comes could didn't document doesn't don't during either enough every everything explain "
    "first found given gives going great hello here's however i've important into isn't itself known large later least "
    "leave lines little looking makes means might minutes month months morning never nothing number numbers office often "
    "other others people place please points question questions rather really report right round second several shall "
    "should since small something state states still thank thanks that's their there these thing things think third those "
    "three through times today together tomorrow under until using usually wants we're weeks what's where whether which "
    "while whole whose within without words would write years you're"
)
"""Words of five letters and more that two texts may share without having anything to do with each other."""

LOOKALIKES: Final = {
    # Of Unicode's confusables.txt (16.0) the Cyrillic and Greek letters that look like one Latin letter.
    **dict(zip("аеорсухіјѕһԁԛԝӏвкмнтгґєѐёї", "aeopcyxijshdqwlbkmhtrreeei", strict=True)),
    **dict(zip("АВЕКМНОРСТУХІЈЅԌԚԜЗҮ", "ABEKMHOPCTYXIJSGQW3Y", strict=True)),
    **dict(zip("αοενικρτυχγωηѵ", "aoevikptuxywnv", strict=True)),
    **dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ABEZHIKMNOPTYX", strict=True)),
}
INVISIBLE: Final = "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2061\u2062\u2063\u2064\u2066\u2067\u2068\u2069\ufeff"
"""Characters that nobody sees: zero width, and marks of direction."""
